// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nodecache/node-cache/pkg/remote"
)

// Protocol is the version of the protocol between the two agents. It changes only for incompatible
// changes. New fields do not change it: an agent ignores fields that it does not know.
const Protocol = 1

const (
	maxMessage = 32 << 10 // bytes
	maxFiles   = 100      // sockets in one message; the kernel allows 253
	maxSockets = 4096     // sockets of one handover, in all messages
)

// Kinds of sockets.
const (
	KindUDP   = "udp"   // DNS over UDP
	KindTCP   = "tcp"   // DNS over TCP
	KindAdmin = "admin" // admin server, over TCP
)

// A Listen identifies a socket by kind and address. Several UDP sockets may share one Listen.
type Listen struct {
	Kind string         `json:"kind"`
	Addr netip.AddrPort `json:"addr"`
}

// String returns the kind and the address.
func (l Listen) String() string { return l.Kind + " " + l.Addr.String() }

// A Claim describes the agent that takes over.
type Claim struct {
	Agent   string   `json:"agent"`
	Version string   `json:"version"`
	Serves  []Listen `json:"serves"` // sockets that the agent reads
	Link    bool     `json:"link"`   // the agent manages the link with the addresses
	Rules   string   `json:"rules"`  // interception backend of the agent; empty: none
}

// Has reports whether the claim covers the sockets of l.
func (c *Claim) Has(l Listen) bool {
	return slices.Contains(c.Serves, l)
}

// Message types.
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

// Reasons why an agent refuses a handover: a closed set.
const (
	ReasonBusy     = "busy"     // it is handing over to another agent
	ReasonProtocol = "protocol" // it speaks another protocol
	ReasonLeaving  = "leaving"  // it is shutting down
	ReasonGiven    = "given"    // it has handed over already
)

// A message is the one message format of the protocol.
type message struct {
	Type     string   `json:"type"`
	Protocol int      `json:"protocol,omitempty"` // in hello, welcome and refused: version of the protocol
	Agent    string   `json:"agent,omitempty"`    // in the same messages: name of the sender
	Version  string   `json:"version,omitempty"`  // in the same messages: version of the sender
	Reason   string   `json:"reason,omitempty"`   // in refused: one of the reasons above
	Problem  string   `json:"problem,omitempty"`  // in snapshot: why it could not be written; empty: it was written
	Listens  []Listen `json:"listens,omitempty"`  // in sockets: identifies the attached files, in order
	More     bool     `json:"more,omitempty"`     // in sockets: another sockets message follows
	Claim    *Claim   `json:"claim,omitempty"`    // in take: describes the sender
}

var (
	errTooLong    = errors.New("message too long")
	errUnexpected = errors.New("unexpected message")
)

// encode marshals a message and checks its size.
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

// decode unmarshals a message. It bounds names, which are only logged; addresses are checked by
// their type.
func decode(text []byte) (*message, error) {
	m := new(message)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("decoding a message: %w", err)
	}
	m.Problem = remote.Text(m.Problem)
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

// refusedError returns the error of a refusal: one of the reasons above, or a reason of a later protocol.
func refusedError(m *message) error {
	if m.Reason == ReasonProtocol {
		return fmt.Errorf("agent %s (%s) speaks protocol %d and this one %d", m.Agent, m.Version, m.Protocol, Protocol)
	}
	return fmt.Errorf("agent %s (%s) refuses to hand over: %s", m.Agent, m.Version, m.Reason)
}
