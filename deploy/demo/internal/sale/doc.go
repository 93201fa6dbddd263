// Package sale plays buyers against the HTTP API of producers: a rush for one article of few units, and some for
// others. Every buyer writes down what it was told. These lists, not the stores, are what the verdict is built on.
package sale
