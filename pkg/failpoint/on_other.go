//go:build failpoint && !unix

package failpoint

func init() { panic("the tag failpoint needs signals: build without it on this system") }

// Enabled says whether this build can be made to fail.
const Enabled = true

// Hit is never reached.
func Hit(Point) {}
