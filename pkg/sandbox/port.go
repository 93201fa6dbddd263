package sandbox

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that the kernel uses for outgoing
// connections: a server that is killed and started again needs its port back,
// and a client that dials the dead port could otherwise be given that very
// number as its own.
const (
	lowestPort  = 15000
	highestPort = 31999
	portTries   = 100
)

// freePort is a loopback port that nobody listens on. Somebody else may take it
// before it is used, so a start that fails for that is tried again.
func freePort() (int, error) {
	for range portTries {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if listener, err := net.Listen("tcp", loopback(port)); err == nil {
			return port, listener.Close()
		}
	}
	listener, err := net.Listen("tcp", loopback(0))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
