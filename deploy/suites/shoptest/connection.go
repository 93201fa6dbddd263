package shoptest

import "net/http"

// KeepConnections lets so many callers keep a connection to each producer; by default 512 do. Call it before they come.
func (s *Shop) KeepConnections(perHost int) {
	s.T.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: perHost}
	s.HTTP.CloseIdleConnections()
	s.HTTP = &http.Client{Transport: &tap{transport}}
	s.T.Cleanup(transport.CloseIdleConnections)
}
