package server

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// A refusedBody is a body that was not even read as a request.
type refusedBody struct{ code, detail string }

func (e *refusedBody) Error() string { return e.code + ": " + e.detail }

// A sheet is the working space of one request: its body, the decoder over it, and the answer. Sheets are pooled,
// so nothing of a sheet may outlive the handler.
type sheet struct {
	raw    bytes.Buffer
	dec    *jsontext.Decoder
	answer []byte
}

// maxKept bounds the memory that a pooled sheet keeps, in bytes.
const maxKept = 256 << 10

var sheets = sync.Pool{New: func() any { return &sheet{dec: jsontext.NewDecoder(&bytes.Buffer{})} }}

func takeSheet() *sheet {
	sh := sheets.Get().(*sheet)
	sh.raw.Reset()
	return sh
}

func (sh *sheet) giveBack() {
	if sh.raw.Cap() <= maxKept && cap(sh.answer) <= maxKept {
		sheets.Put(sh)
	}
}

// read takes the whole body, up to most bytes, and makes the decoder ready. The errors are *refusedBody.
func (sh *sheet) read(w http.ResponseWriter, r *http.Request, most int64) error {
	tooLarge := &refusedBody{api.CodeTooLarge, fmt.Sprintf("the body may have %d bytes: send fewer lines, or several requests", most)}
	if r.ContentLength > most {
		return tooLarge
	}
	if r.ContentLength != 0 {
		if err := checkMediaType(r.Header.Get("Content-Type")); err != nil {
			return err
		}
	}
	// A caller that never sends its body must not keep a connection for ever; where there is none (in tests) this
	// is not supported, and not needed.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	_, err := sh.raw.ReadFrom(http.MaxBytesReader(w, r.Body, most))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge
	case err != nil:
		return &refusedBody{api.CodeMalformed, "the body ended before it was complete: send it again"}
	}
	return nil
}

func checkMediaType(header string) error {
	if header == "application/json" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(header)
	if err == nil && kind == "application/json" && (params["charset"] == "" || strings.EqualFold(params["charset"], "utf-8")) {
		return nil
	}
	return &refusedBody{api.CodeMediaType, "send JSON in UTF-8, with the header Content-Type: application/json"}
}

// bodyBound is the largest body of everything but bulk requests, in bytes.
func (s *Server) bodyBound() int64 { return baseBodyBytes + int64(s.config.MaxLines)*bytesPerLine }
