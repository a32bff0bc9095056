// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// SelfName is the name, of class CH and type TXT, whose answer is [Plan.Self]. By
// it an agent proves to itself that what is sent to an address reaches its own
// sockets, and what reads them works.
const SelfName = "self.node-cache."

const selfName = "\x04self\x0anode-cache\x00" // SelfName in wire form

// asksSelf tells whether the query in hand is the agent's to itself.
func (l *Lane) asksSelf() bool {
	return l.q.Class == wire.ClassCH && l.q.Type == wire.TypeTXT && len(l.plan.self) > 0 && string(l.q.Name()) == selfName
}

// self answers the agent. It takes the way of every answer from memory, but is in
// no count and no log: those are of clients, and it asks several times a second.
func (l *Lane) self(from *wire.Peer, now time.Time, dst []byte) []byte {
	l.prepare(from, now)
	return l.q.AppendRecord(dst, wire.TypeTXT, 0, l.plan.self, &l.seal)
}
