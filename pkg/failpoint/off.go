//go:build !failpoint

package failpoint

// Enabled says whether this build can be made to fail.
const Enabled = false

// Hit does nothing in this build.
func Hit(Point) {}
