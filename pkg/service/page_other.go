//go:build !linux

package service

// pageIn does something on Linux only.
func pageIn() {}
