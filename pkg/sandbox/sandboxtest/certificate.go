package sandboxtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority signs certificates of servers on loopback, for one test. Its
// files are PEM.
type Authority struct {
	CAFile string // what clients trust

	folder string
	root   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// NewAuthority makes one, with a root that nobody else trusts.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{folder: t.TempDir()}
	a.key = newKey(t)
	a.root = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.root, a.root, a.key.Public(), a.key)
	if err != nil {
		t.Fatalf("sandboxtest: make a root: %v", err)
	}
	a.CAFile = filepath.Join(a.folder, "ca.pem")
	writePEM(t, a.CAFile, "CERTIFICATE", der)
	return a
}

// Server writes a certificate for 127.0.0.1 and localhost, and its key. The same
// name again replaces the files.
func (a *Authority) Server(t testing.TB, name string) (certificate, key string) {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	leaf := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	own := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.root, own.Public(), a.key)
	if err != nil {
		t.Fatalf("sandboxtest: sign a certificate: %v", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatalf("sandboxtest: write a key: %v", err)
	}
	certificate, key = filepath.Join(a.folder, name+".pem"), filepath.Join(a.folder, name+".key")
	writePEM(t, certificate, "CERTIFICATE", der)
	writePEM(t, key, "PRIVATE KEY", secret)
	return certificate, key
}

// Pool is what clients trust.
func (a *Authority) Pool(t testing.TB) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(a.CAFile)
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("sandboxtest: make a key: %v", err)
	}
	return key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
}
