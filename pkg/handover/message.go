// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Protocol is the version of what the two agents say to each other. It changes when an
// agent of the other version would misunderstand; fields that are added do not change
// it, an agent passes over what it does not know.
const Protocol = 1

const (
	maxMessage = 32 << 10 // bytes
	maxFiles   = 100      // sockets with one message; the kernel takes 253
	maxSockets = 4096     // in all
)

// Kinds of sockets.
const (
	KindUDP   = "udp"   // of DNS
	KindTCP   = "tcp"   // of DNS
	KindAdmin = "admin" // TCP, of the admin server
)

// A Listen names a socket: what listens on it, and where. Several UDP sockets share one
// name.
type Listen struct {
	Kind string         `json:"kind"`
	Addr netip.AddrPort `json:"addr"`
}

// String is the kind and the address.
func (l Listen) String() string { return l.Kind + " " + l.Addr.String() }

// A Claim is what an agent says that takes over.
type Claim struct {
	Agent   string   `json:"agent"`
	Version string   `json:"version"`
	Serves  []Listen `json:"serves"` // the sockets that it reads from now on
	Link    bool     `json:"link"`   // it keeps the link that has the addresses
	Rules   string   `json:"rules"`  // the backend by which it leads queries to itself; empty: by none
}

// Has reports whether the sockets of a name are among those that the claim is for.
func (c *Claim) Has(l Listen) bool {
	return slices.Contains(c.Serves, l)
}

// What a message is.
const (
	typeHello    = "hello"
	typeWelcome  = "welcome"
	typeRefused  = "refused"
	typeSnapshot = "snapshot"
	typeSockets  = "sockets"
	typeLeaving  = "leaving"
	typeTake     = "take"
	typeGiven    = "given"
)

// Reasons why an agent does not hand over: a closed set.
const (
	ReasonBusy     = "busy"     // it is about to hand over to another one
	ReasonProtocol = "protocol" // it speaks another protocol
	ReasonLeaving  = "leaving"  // it is about to end
	ReasonGiven    = "given"    // it has handed over already
)

// A message is all that is ever said.
type message struct {
	Type     string   `json:"type"`
	Protocol int      `json:"protocol,omitempty"` // of hello, welcome and refused
	Agent    string   `json:"agent,omitempty"`    // likewise
	Version  string   `json:"version,omitempty"`  // likewise
	Reason   string   `json:"reason,omitempty"`   // of refused
	Problem  string   `json:"problem,omitempty"`  // of snapshot: why there is none
	Listens  []Listen `json:"listens,omitempty"`  // of sockets: what the files that come with it are, in order
	More     bool     `json:"more,omitempty"`     // of sockets: another such message follows
	Claim    *Claim   `json:"claim,omitempty"`    // of take
}

var (
	errTooLong    = errors.New("the message is too long")
	errUnexpected = errors.New("a message that does not belong here")
)

// encode makes a message into bytes.
func encode(m *message) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding a message: %w", err)
	}
	if len(text) > maxMessage {
		return nil, fmt.Errorf("encoding a message of %d bytes: %w", len(text), errTooLong)
	}
	return text, nil
}

// decode reads a message. Names in it are for logs and are checked; addresses are
// checked by their type.
func decode(text []byte) (*message, error) {
	m := new(message)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("decoding a message: %w", err)
	}
	names := []string{m.Type, m.Agent, m.Version, m.Reason}
	if m.Claim != nil {
		names = append(names, m.Claim.Agent, m.Claim.Version, m.Claim.Rules)
	}
	for _, name := range names {
		if len(name) > 64 {
			return nil, fmt.Errorf("decoding a message: a name of %d bytes: %w", len(name), errTooLong)
		}
	}
	if len(m.Listens) > maxFiles {
		return nil, fmt.Errorf("decoding a message: %d sockets: %w", len(m.Listens), errTooLong)
	}
	return m, nil
}

// A RefusedError says that an agent is there and does not hand over.
type RefusedError struct {
	Reason   string // one of the reasons, or what a later protocol has for one
	Agent    string // its name
	Version  string // of the agent
	Protocol int    // that it speaks
}

// Error says which agent refused and why.
func (e *RefusedError) Error() string {
	if e.Reason == ReasonProtocol {
		return fmt.Sprintf("agent %s (%s) speaks protocol %d and this one %d", e.Agent, e.Version, e.Protocol, Protocol)
	}
	return fmt.Sprintf("agent %s (%s) does not hand over: %s", e.Agent, e.Version, e.Reason)
}
