// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Replies to unusual packets. docs/odd-packets.md has this table for users, and odd_test.go checks
// both.
//
//	shorter than a header, QR=1           dropped
//	opcode other than QUERY               NOTIMP, header only          (RFC 8906 section 3.1.4)
//	QDCOUNT other than 1                  FORMERR, header only         (RFC 9619)
//	a question, record or option cut,
//	two OPTs, an OPT with a name,
//	a cookie of a wrong length,
//	a client subnet that cannot be read   FORMERR, header only         (RFC 6891 section 6.1.1, RFC 7873 section 5.2.2, RFC 7871 section 6)
//	EDNS version above 0                  BADVERS with our version     (RFC 6891 section 6.1.3)
//	class CH, TXT of version.bind,
//	version.server, hostname.bind,
//	id.server                             as configured, else REFUSED  (RFC 4892)
//	class CH, TXT of self.node-cache,
//	and of it behind the agent's name     see self.go
//	any other class                       REFUSED
//	type ANY                              HINFO "RFC8482" ""           (RFC 8482 section 4.2)
//	types AXFR and IXFR                   see transfer.go
//	types 0, 41, the rest of 128 to 254   REFUSED                      (RFC 6895 section 3.1: not data)
//	RD=0 for a name not held              REFUSED
//	a name of our own loop probes         REFUSED, see probe.go

// answerFault replies to a malformed or unsupported packet.
func (l *Worker) answerFault(answerFault wire.Fault, pkt []byte, from *wire.Peer, dst []byte) ([]byte, wire.Verdict) {
	l.tally.fault(answerFault)
	switch answerFault {
	case wire.FaultFormErr:
		l.tally.response(SourceRefused, wire.RcodeFormErr)
		return wire.AppendFault(dst, pkt, wire.RcodeFormErr), wire.Answered
	case wire.FaultNotImp:
		l.tally.response(SourceRefused, wire.RcodeNotImp)
		return wire.AppendFault(dst, pkt, wire.RcodeNotImp), wire.Answered
	case wire.FaultBadVers:
		opts := wire.ReplyOptions{Limit: l.q.Limit(from.Stream, l.plan.UDPSize), UDPSize: l.plan.UDPSize, EDE: wire.EDENone}
		l.tally.response(SourceRefused, wire.RcodeBadVers)
		return l.q.AppendEmpty(dst, wire.RcodeBadVers, &opts), wire.Answered
	case wire.FaultNone, wire.FaultDrop:
	}
	return dst, wire.Dropped
}

// oddType reports whether a query type does not ask for records.
func oddType(t uint16) bool { return t >= 128 && t <= 255 || t == wire.TypeOPT || t == 0 }

// isTransfer reports whether a query type asks for a zone transfer.
func isTransfer(t uint16) bool { return t == wire.TypeAXFR || t == wire.TypeIXFR }

// answerOdd answers a well-formed query that is not for records of class IN.
func (l *Worker) answerOdd(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	q := &l.q
	start := len(dst)
	switch {
	case q.Class == wire.ClassIN && isTransfer(q.Type):
		return l.answerTransfer(from, now, dst)
	case q.Class == wire.ClassIN && q.Type == wire.TypeANY:
		dst = q.AppendRecord(dst, wire.TypeHINFO, 3600, []byte("\x07RFC8482\x00"), &l.opts)
	case q.Class == wire.ClassCH && q.Type == wire.TypeTXT:
		text := l.identity()
		if text == "" {
			return l.answerEmpty(SourceRefused, wire.RcodeRefused, from, now, dst)
		}
		data := append([]byte{byte(len(text))}, text...)
		dst = q.AppendRecord(dst, wire.TypeTXT, 0, data, &l.opts)
	default:
		return l.answerEmpty(SourceRefused, wire.RcodeRefused, from, now, dst)
	}
	return l.finishReply(SourceLocal, dst, start, from, now), wire.Answered
}

// identity returns the text of the CH name in the query, "" for none.
func (l *Worker) identity() string {
	switch string(l.q.Name()) {
	case "\x07version\x04bind\x00", "\x07version\x06server\x00":
		return l.plan.Version
	case "\x08hostname\x04bind\x00", "\x02id\x06server\x00":
		return l.plan.Hostname
	}
	if l.isSelfIdentity() {
		return l.plan.Self
	}
	return ""
}

// answerEmpty answers with an rcode and no records.
func (l *Worker) answerEmpty(source Source, rcode int, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	dst = l.q.AppendEmpty(dst, rcode, &l.opts)
	return l.finishReply(source, dst, start, from, now), wire.Answered
}

// SelfName is the name, of class CH and type TXT, whose answer is [Plan.Self]. With it an agent
// verifies that packets to an address reach its own sockets and that the goroutines reading them work.
const SelfName = "self.node-cache."

const selfName = "\x04self\x0anode-cache\x00" // SelfName in wire form

// isSelfQuery reports whether the query is the agent's own, from an address of this host.
func (l *Worker) isSelfQuery(from *wire.Peer) bool {
	return l.q.Class == wire.ClassCH && l.q.Type == wire.TypeTXT && len(l.plan.self) > 0 && string(l.q.Name()) == selfName &&
		l.plan.Local != nil && l.plan.Local(from.Addr.Addr())
}

// answerSelf answers the agent. It follows the path of every answer from memory. It is neither counted
// nor logged: counters and logs are about clients, and the agent sends several such queries a second.
func (l *Worker) answerSelf(from *wire.Peer, now time.Time, dst []byte) []byte {
	l.initReplyOptions(from, now)
	return l.q.AppendRecord(dst, wire.TypeTXT, 0, l.plan.self, &l.opts)
}

// isSelfIdentity reports whether the name is SelfName prefixed by this agent's text as a label. Any
// client that knows the text may verify it. So the doctor finds out from a pod which agent answers.
func (l *Worker) isSelfIdentity() bool {
	name := l.q.Name()
	n := len(l.plan.self)
	return n > 1 && len(name) == n+len(selfName) && string(name[n:]) == selfName && string(name[:n]) == string(l.plan.self)
}

// isLoop reports whether the query was sent to an upstream by this process and came back. It must not
// be sent again.
func (l *Worker) isLoop() bool {
	name := l.q.Name()
	return wire.IsLoopName(name) && l.plan.Loop != nil && l.plan.Loop(name)
}
