package access

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
)

const maxPEM = 256 << 10 // bytes of a certificate with its chain, or of a key

// A Certificate is what a listener shows, from two PEM files that are read again within a second of a handshake after
// they changed. Safe for concurrent use.
type Certificate struct {
	file *watched[*tls.Certificate]
}

// OpenCertificate reads both files: the certificate, followed by those that lead to its root, and its key. Tell hears
// why a change could not be taken, as in OpenTokens: while one of two files is new and the other old, that is so for a
// moment.
func OpenCertificate(certificate, key string, tell func(error)) (*Certificate, error) {
	file, err := watch("TLS certificate", []string{certificate, key}, maxPEM, tell, func(texts [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		if err != nil {
			return nil, fmt.Errorf("%w: name a PEM certificate and the PEM key that it was made for", err)
		}
		return &pair, nil
	})
	if err != nil {
		return nil, err
	}
	return &Certificate{file: file}, nil
}

// Server is what a listener needs, TLS 1.2 and later.
func (c *Certificate) Server() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.file.get(), nil },
	}
}

// Same is for a program that asks a listener beside it: it accepts exactly the certificate in the file, whatever
// names that has and however it is signed.
func (c *Certificate) Same() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The comparison below is stricter than the usual rules, which would ask for a name that an address has not.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(state tls.ConnectionState) error {
			if own := c.file.get(); len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, own.Certificate[0]) {
				return errors.New("what answers shows another certificate than the one in --tls-cert")
			}
			return nil
		},
	}
}
