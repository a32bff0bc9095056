// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/remote"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 65)
	for _, tt := range []struct {
		name, text string
		bad        bool
	}{
		{name: "a hello", text: `{"type":"hello","protocol":1,"agent":"a"}`},
		{name: "fields of a later version", text: `{"type":"hello","protocol":1,"later":{"a":[1]}}`},
		{name: "no JSON", text: `hello`, bad: true},
		{name: "empty", text: ``, bad: true},
		{name: "no address", text: `{"type":"sockets","listens":[{"kind":"udp","addr":"nowhere"}]}`, bad: true},
		{name: "a long name", text: `{"type":"hello","agent":"` + long + `"}`, bad: true},
		{name: "a long name in a claim", text: `{"type":"take","claim":{"agent":"` + long + `"}}`, bad: true},
		{name: "too many sockets", text: `{"type":"sockets","listens":[` + strings.Repeat(`{},`, maxFiles) + `{}]}`, bad: true},
	} {
		if _, err := decode([]byte(tt.text)); (err != nil) != tt.bad {
			t.Errorf("%s: %v, want an error: %t", tt.name, err, tt.bad)
		}
	}
}

// A problem that the other agent has is shown, so it is cut.
func TestDecodeLongProblem(t *testing.T) {
	t.Parallel()
	m, err := decode([]byte(`{"type":"refused","problem":"` + strings.Repeat("x", 32<<10) + `"}`))
	if err != nil || len(m.Problem) > remote.MaxText || !strings.HasPrefix(m.Problem, "xxx") {
		t.Errorf("%d bytes, %v, want the first %d", len(m.Problem), err, remote.MaxText)
	}
}

func TestEncodeBound(t *testing.T) {
	t.Parallel()
	if _, err := encode(&message{Type: typeSnapshot, Problem: strings.Repeat("x", maxMessage)}); !errors.Is(err, errTooLong) {
		t.Errorf("%v, want that it is too long", err)
	}
	var c Claim
	for range maxFiles { // what one agent has at most, an address each
		c.Serves = append(c.Serves, Listen{KindAdmin, netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535")})
	}
	if _, err := encode(&message{Type: typeTake, Claim: &c}); err != nil {
		t.Error(err)
	}
}

func TestRefusedError(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]*message{
		"agent ab (v2) refuses to hand over: busy":       {Reason: ReasonBusy, Agent: "ab", Version: "v2", Protocol: 1},
		"agent ab (v9) speaks protocol 2 and this one 1": {Reason: ReasonProtocol, Agent: "ab", Version: "v9", Protocol: 2},
	} {
		if err := refusedError(m); err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

// FuzzDecode reads messages of the other end, which may be of any version.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"type":"hello","protocol":1,"agent":"a","version":"v1"}`))
	f.Add([]byte(`{"type":"take","claim":{"agent":"a","serves":[{"kind":"udp","addr":"127.0.0.1:53"}],"link":true,"rules":"nftables"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decode(text)
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Fatal("read what is no JSON")
		}
		again, err := encode(m)
		if errors.Is(err, errTooLong) {
			return
		}
		assert.NoError(t, err)
		if _, err := decode(again); err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
	})
}
