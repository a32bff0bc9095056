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

// asksSelf reports whether the query in hand is the agent's to itself, which comes from an
// address of this machine.
func (l *Worker) asksSelf(from *wire.Peer) bool {
	return l.q.Class == wire.ClassCH && l.q.Type == wire.TypeTXT && len(l.plan.self) > 0 && string(l.q.Name()) == selfName &&
		l.plan.Local != nil && l.plan.Local(from.Addr.Addr())
}

// self answers the agent. It takes the way of every answer from memory, but is in
// no count and no log: those are of clients, and it asks several times a second.
func (l *Worker) self(from *wire.Peer, now time.Time, dst []byte) []byte {
	l.prepare(from, now)
	return l.q.AppendRecord(dst, wire.TypeTXT, 0, l.plan.self, &l.opts)
}

// knowsSelf reports whether the name is SelfName behind this agent's text as a label. Any
// client that knows the text may have it confirmed: so the doctor finds out, from a pod,
// which agent answers there.
func (l *Worker) knowsSelf() bool {
	name := l.q.Name()
	n := len(l.plan.self)
	return n > 1 && len(name) == n+len(selfName) && string(name[n:]) == selfName && string(name[:n]) == string(l.plan.self)
}
