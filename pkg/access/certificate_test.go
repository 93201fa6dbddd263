package access

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestACertificateIsReadAgainWhenBothFilesChanged(t *testing.T) {
	t.Parallel()
	authority := sandboxtest.NewAuthority(t)
	pem, key := authority.Server(t, "listener")
	oldKey, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	var told []error
	c, err := OpenCertificate(pem, key, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	first := c.file.get().Certificate[0]

	authority.Server(t, "listener")
	newKey, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, key, string(oldKey)) // the moment between the two files
	c.file.due.Store(0)
	if got := c.file.get().Certificate[0]; !bytes.Equal(got, first) || len(told) != 1 {
		t.Errorf("half a change is taken, or not told: %v", told)
	}
	write(t, key, string(newKey))
	c.file.due.Store(0)
	if got := c.file.get().Certificate[0]; bytes.Equal(got, first) || len(told) != 1 {
		t.Errorf("the change is not taken: %v", told)
	}
}

func TestACertificateAndAStrangersKeyAreRefused(t *testing.T) {
	t.Parallel()
	authority := sandboxtest.NewAuthority(t)
	pem, _ := authority.Server(t, "one")
	_, key := authority.Server(t, "two")
	if _, err := OpenCertificate(pem, key, nil); err == nil || !strings.Contains(err.Error(), "made for") {
		t.Errorf("got %v", err)
	}
	if _, err := OpenCertificate(pem+"none", key, nil); err == nil || !strings.Contains(err.Error(), "may read") {
		t.Errorf("got %v", err)
	}
}
