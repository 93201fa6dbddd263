package faultproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
)

var errFraming = errors.New("not a message of the protocol")

// protocol cuts streams into messages. It keeps the state of one connection.
type protocol interface {
	// request reads the first message of what a client sent; size 0 means that
	// it is not complete yet.
	request(data []byte) (message, error)
	// reply does the same for what a server sent.
	reply(data []byte) (message, error)
}

// message is one piece of a stream that is passed as a whole.
type message struct {
	size        int    // in bytes
	earnsReply  bool   // completes a request, or completes a reply
	partOfReply bool   // belongs to the reply of a request, not a push or notice
	handshake   bool   // asked before the first real request
	whole       []byte // of a request: all its bytes, earlier messages included
}

// detect knows a protocol by the client's first byte: Postgres begins with a
// length below 16 MiB, TLS with 22.
func detect(first []byte) protocol {
	switch first[0] {
	case 0:
		return &postgres{}
	case 22:
		return opaque{}
	default:
		return resp{}
	}
}

// opaque passes what it cannot read.
type opaque struct{}

func (opaque) request(data []byte) (message, error) { return message{size: len(data)}, nil }
func (opaque) reply(data []byte) (message, error)   { return message{size: len(data)}, nil }

// resp is the protocol of Redis, versions 2 and 3.
type resp struct{}

func (resp) request(data []byte) (message, error) {
	size, err := respSize(data, 0)
	if err != nil || size == 0 {
		return message{}, err
	}
	whole := data[:size]
	m := message{size: size, earnsReply: true, whole: whole}
	switch respCommand(whole) {
	case "HELLO", "AUTH", "CLIENT", "SELECT", "READONLY", "COMMAND":
		m.handshake = true
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR":
		// These earn any number of replies, so counting ends here.
		return message{}, errFraming
	}
	return m, nil
}

func (resp) reply(data []byte) (message, error) {
	size, err := respSize(data, 0)
	if err != nil || size == 0 {
		return message{}, err
	}
	push := data[0] == '>'
	return message{size: size, earnsReply: !push, partOfReply: !push}, nil
}

// respDepth bounds the nesting of arrays.
const respDepth = 32

// respSize is the length of the first value, or 0 if it is not complete. A line
// that begins with none of the type marks is an inline command.
func respSize(data []byte, depth int) (int, error) {
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		return 0, nil
	}
	if depth > respDepth {
		return 0, errFraming
	}
	head := strings.TrimRight(string(data[1:max(end, 1)]), "\r")
	size := end + 1
	switch data[0] {
	case '$', '=', '!':
		length, err := strconv.Atoi(head)
		if err != nil {
			return 0, errFraming
		}
		if length < 0 {
			return size, nil
		}
		if size += length + 2; size > len(data) {
			return 0, nil
		}
		return size, nil
	case '*', '>', '~', '%', '|':
		count, err := strconv.Atoi(head)
		if err != nil {
			return 0, errFraming
		}
		if data[0] == '%' || data[0] == '|' {
			count *= 2
		}
		if data[0] == '|' {
			// Attributes stand before the value that they describe.
			count++
		}
		for range count {
			inner, err := respSize(data[size:], depth+1)
			if err != nil || inner == 0 {
				return 0, err
			}
			size += inner
		}
		return size, nil
	default:
		return size, nil
	}
}

// respCommand is the name of a request's command in capitals.
func respCommand(request []byte) string {
	for field := range bytes.FieldsSeq(request) {
		if field[0] != '*' && field[0] != '$' {
			return strings.ToUpper(string(field))
		}
	}
	return ""
}

// postgres is protocol 3. Its request is everything up to the message that
// earns a ReadyForQuery.
type postgres struct {
	begun   bool   // the start-up message has passed
	asksTLS bool   // the server's next byte answers a request for encryption
	group   []byte // messages of the request under way
}

const (
	sslRequest    = 80877103
	gssRequest    = 80877104
	cancelRequest = 80877102
)

func (p *postgres) request(data []byte) (message, error) {
	if !p.begun {
		return p.startup(data)
	}
	// Once encrypted, or out of step, lengths make no sense.
	if len(data) < 5 {
		return message{}, nil
	}
	size := 1 + int(binary.BigEndian.Uint32(data[1:]))
	if size < 5 {
		return message{}, errFraming
	}
	if size > len(data) {
		return message{}, nil
	}
	if len(p.group)+size > largestMessage {
		return message{}, errFraming
	}
	m := message{size: size}
	p.group = append(p.group, data[:size]...)
	switch data[0] {
	case 'Q', 'S', 'F': // Query, Sync, FunctionCall
		m.earnsReply, m.whole = true, p.group
		p.group = nil
	case 'p', 'd', 'c', 'f': // a password or COPY data, which match nothing
		p.group = p.group[:len(p.group)-size]
	}
	return m, nil
}

func (p *postgres) startup(data []byte) (message, error) {
	if len(data) < 8 {
		return message{}, nil
	}
	size := int(binary.BigEndian.Uint32(data))
	if size < 8 || size > 1<<20 {
		return message{}, errFraming
	}
	if size > len(data) {
		return message{}, nil
	}
	switch binary.BigEndian.Uint32(data[4:]) {
	case sslRequest, gssRequest:
		p.asksTLS = true
		return message{size: size}, nil
	case cancelRequest:
		return message{size: size}, nil
	}
	p.begun = true
	return message{size: size, earnsReply: true, handshake: true}, nil
}

func (p *postgres) reply(data []byte) (message, error) {
	if p.asksTLS {
		p.asksTLS = false
		if data[0] != 'N' {
			return message{}, errFraming
		}
		return message{size: 1}, nil
	}
	if len(data) < 5 {
		return message{}, nil
	}
	size := 1 + int(binary.BigEndian.Uint32(data[1:]))
	if size < 5 {
		return message{}, errFraming
	}
	if size > len(data) {
		return message{}, nil
	}
	aside := data[0] == 'N' || data[0] == 'A' || data[0] == 'S' // notice, notification, parameter
	return message{size: size, earnsReply: data[0] == 'Z', partOfReply: !aside}, nil
}
