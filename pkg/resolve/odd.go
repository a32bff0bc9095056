// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"github.com/nodecache/node-cache/pkg/names/zone"
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
//	and of it behind the agent's name     see SelfName
//	any other class                       REFUSED
//	type ANY                              HINFO "RFC8482" ""           (RFC 8482 section 4.2)
//	types AXFR and IXFR                   see transfer.go
//	types 0, 41, the rest of 128 to 254   REFUSED                      (RFC 6895 section 3.1: not data)
//	RD=0 for a name not held              REFUSED
//	a name of our own loop probes         REFUSED, see upstream.LoopDetector

// answerFault replies to a malformed or unsupported packet.
func (q *query) answerFault(rcode int, pkt, dst []byte) ([]byte, wire.Verdict) {
	if rcode == wire.NoReply {
		q.worker.tally.each[countDropped]++
		return dst, wire.Dropped
	}
	q.worker.tally.response(SourceRefused, rcode)
	switch rcode {
	case wire.RcodeFormErr:
		q.worker.tally.each[countMalformed]++
	case wire.RcodeBadVers:
		opts := wire.ReplyOptions{Limit: q.Limit(q.from.Stream, q.plan.UDPSize), UDPSize: uint16(q.plan.UDPSize), EDE: wire.EDENone}
		return q.AppendEmpty(dst, wire.RcodeBadVers, &opts), wire.Answered
	}
	return wire.AppendFault(dst, pkt, byte(rcode)), wire.Answered
}

// answerUnusual answers a well-formed query that is not for records of class IN, or that is signed.
func (q *query) answerUnusual(pkt, dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	var source Source
	if q.TSIG > 0 && q.plan.verifies(q.from.Addr.Addr()) {
		dst, source = q.answerSigned(pkt, dst)
	} else {
		dst, source = q.answerOdd(dst)
	}
	dst, verdict := q.finishReply(source, dst, start)
	if q.signer != nil && verdict == wire.Answered {
		dst = q.signer.Sign(dst, start, q.now)
	}
	return dst, verdict
}

// answerOdd appends the whole reply to a well-formed query that is not for records of class IN.
func (q *query) answerOdd(dst []byte) ([]byte, Source) {
	switch {
	case q.Class == wire.ClassIN && isTransfer(q.Type):
		return q.answerTransfer(dst)
	case q.Class == wire.ClassIN && q.Type == wire.TypeANY:
		return q.AppendRecord(dst, wire.TypeHINFO, 3600, []byte("\x07RFC8482\x00"), &q.opts), SourceLocal
	case q.Class == wire.ClassCH && q.Type == wire.TypeTXT:
		if text := q.plan.identity(q.Name()); text != "" {
			return q.AppendRecord(dst, wire.TypeTXT, 0, append([]byte{byte(len(text))}, text...), &q.opts), SourceLocal
		}
	}
	return q.empty(SourceRefused, wire.RcodeRefused, dst)
}

// answerSigned answers a query with a TSIG record. It answers zone transfers and what the zones have: a
// secondary server asks nothing else.
func (q *query) answerSigned(pkt, dst []byte) ([]byte, Source) {
	signer, err := q.plan.Keys.Verify(pkt, q.TSIG, q.now)
	if err != nil {
		return q.empty(SourceRefused, wire.RcodeFormErr, dst)
	}
	q.signer = signer
	q.opts.Limit -= signer.Room()
	if signer.Failed != 0 {
		q.plan.Keys.LogRefused(q.from.Addr.Addr(), signer.Reason())
		return q.empty(SourceRefused, wire.RcodeNotAuth, dst)
	}
	if q.Class != wire.ClassIN || oddType(q.Type) {
		return q.answerOdd(dst)
	}
	start := len(dst)
	dst, result := q.plan.Zones.Answer(&q.Query, q.zoneClient(), q.now, dst)
	if result.Verdict != zone.Answered {
		return q.empty(SourceRefused, wire.RcodeRefused, dst[:start])
	}
	q.opts.EDE = result.EDE
	return q.Reply(dst, start, &q.opts), SourceZone
}

// answerTransfer answers a transfer query, or leaves it to Resolve if the reply is a zone.
func (q *query) answerTransfer(dst []byte) ([]byte, Source) {
	start := len(dst)
	if !q.plan.mayTransfer(q.from.Addr.Addr()) {
		return q.empty(SourceRefused, wire.RcodeRefused, dst)
	}
	if q.plan.Keys != nil && q.signer == nil {
		q.plan.Keys.LogRefused(q.from.Addr.Addr(), "not signed")
		return q.empty(SourceRefused, wire.RcodeRefused, dst)
	}
	z := q.plan.Zones.At(q.Name())
	if z == nil {
		return q.empty(SourceRefused, wire.RcodeNotAuth, dst)
	}
	switch {
	case q.Type == wire.TypeAXFR && !q.from.Stream:
		return q.empty(SourceRefused, wire.RcodeRefused, dst)
	case !z.Complete(q.now):
		q.opts.EDE = wire.EDENotReady
		return q.empty(SourceZone, wire.RcodeServFail, dst)
	case q.Type == wire.TypeIXFR && (!q.from.Stream || q.HasSerial && !newer(z.Serial(), q.Serial)):
		return q.Reply(appendSOA(z, q.Query, q.now, dst), start, &q.opts), SourceZone
	}
	return dst, undecided
}

// identity returns the text of a CH name, "" for none.
//
// Any client may query SelfName below a label that is this agent's Self; the answer is Self. The doctor
// uses this to find out from a pod which agent answers.
func (p *Plan) identity(name []byte) string {
	switch string(name) {
	case "\x07version\x04bind\x00", "\x07version\x06server\x00":
		return p.Version
	case "\x08hostname\x04bind\x00", "\x02id\x06server\x00":
		return p.Hostname
	}
	if len(p.self) > 1 && string(name) == string(p.self)+selfName {
		return p.Self
	}
	return ""
}

// SelfName is the name, of class CH and type TXT, whose answer is [Plan.Self]. With it an agent
// verifies that packets to an address reach its own sockets and that the goroutines reading them work.
const SelfName = "self.node-cache."

const selfName = "\x04self\x0anode-cache\x00" // SelfName in wire form
