// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/dchest/siphash"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A Worker is the resolver's state for one goroutine that reads packets: the current query, its reply
// options, and counters that are added to the resolver's once per batch.
type Worker struct {
	r          *Resolver
	plan       *Plan // of the current query
	q          wire.Query
	opts       wire.ReplyOptions
	cookie     [cookieLen]byte
	redirect   redirect // from the client's question to the one looked up
	restorer   restorer
	rotation   uint32 // counts zone answers, to rotate their addresses
	tally      tally
	batch      wire.SendBatch // upstream queries and replies to send at the end of the batch
	spareQuery *inFlight      // for the next query to start; nil: not allocated
	staleHeld  bool           // a stale answer is held for the current miss
	addrProven bool           // the source address of the current miss is verified
	elapsed    time.Duration  // since the query arrived; 0 except for DNS64 retries
}

// NewWorker returns a worker.
func (r *Resolver) NewWorker() *Worker { return &Worker{r: r} }

// AnswerFromMemory answers the query in pkt from memory if it can, and appends the reply to dst. After
// wire.Missed the caller must call Resolve; until then pkt must not change.
func (l *Worker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	l.plan = l.r.plan.Load()
	l.tally.begin(now)
	if rcode := l.q.Parse(pkt); rcode != wire.RcodeSuccess {
		return l.answerFault(rcode, pkt, from, dst)
	}
	if l.isSelfQuery(from) {
		return l.answerSelf(from, now, dst), wire.Answered
	}
	l.tally.query(from, l.q.Type)
	l.initReplyOptions(from, now)
	l.redirect.active = false
	if l.q.Class != wire.ClassIN || oddType(l.q.Type) {
		return l.answerOdd(from, now, dst)
	}
	if l.plan.hasExtras {
		return l.answerWithExtras(from, now, dst)
	}
	if l.plan.Zone != nil {
		var done bool
		if dst, done = l.answerFromZone(from, now, dst); done {
			return dst, wire.Answered
		}
	}
	return l.answerFromCache(from, now, dst)
}

// answerFromCache answers the current query from the cache.
func (l *Worker) answerFromCache(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	l.addSubnetToKey()
	dst, found := l.plan.Cache.Lookup(l.q.Key(), now, dst)
	source := SourceCache
	switch found {
	case cache.Absent, cache.Stale:
		var verdict wire.Verdict
		var denied bool
		if dst, verdict, denied = l.handleMiss(found, from, now, dst); !denied {
			return dst, verdict
		}
	case cache.PrefetchDue:
		l.refresh(now)
	case cache.Failed, cache.StaleBackoff:
		if l.plan.Zone != nil && !l.redirect.hasAlias() {
			if said, ok := l.answerZoneFallback(from, now, dst); ok {
				return append(dst[:start], said[len(dst):]...), wire.Answered
			}
		}
		if source, l.opts.EDE = SourceFailure, wire.EDECachedError; found == cache.StaleBackoff {
			source, l.opts.EDE = SourceStale, staleEDE(dst[start:])
		}
	case cache.Fresh:
	}
	if l.redirect.active {
		var done bool
		if dst, done = l.restoreAndReply(source, from, now, dst, start); !done {
			return l.answerRetry(from, now, dst)
		}
		return dst, wire.Answered
	}
	dst = l.q.Reply(dst, start, &l.opts)
	return l.finishReply(source, dst, start, from, now), wire.Answered
}

// handleMiss handles a query without a usable cache entry. It denies the name if a cached denial of a
// parent covers it, and refuses queries that must not go upstream.
func (l *Worker) handleMiss(found cache.Freshness, from *wire.Peer, now time.Time, dst []byte) (_ []byte, _ wire.Verdict, denied bool) {
	l.staleHeld = found == cache.Stale
	loop := l.isLoop()
	if !l.staleHeld && !loop {
		if dst, denied = l.answerFromCut(now, dst); denied {
			return dst, wire.Answered, true
		}
	}
	if !l.q.RD || loop { // no recursion desired, or a loop
		dst, verdict := l.answerEmpty(SourceRefused, wire.RcodeRefused, from, now, dst)
		return dst, verdict, false
	}
	return dst, wire.Missed, false
}

// isLoop reports whether the query was sent to an upstream by this process and came back. It must not
// be sent again.
func (l *Worker) isLoop() bool {
	name := l.q.Name()
	return wire.IsLoopName(name) && l.plan.Loop != nil && l.plan.Loop(name)
}

// initReplyOptions sets the options of the reply.
func (l *Worker) initReplyOptions(from *wire.Peer, now time.Time) {
	q := &l.q
	l.opts = wire.ReplyOptions{Limit: q.Limit(from.Stream, l.plan.UDPSize), UDPSize: l.plan.UDPSize, EDE: wire.EDENone}
	if !q.EDNS {
		return
	}
	if q.Explain {
		l.admitExplain(from)
	}
	if q.Cookie != nil {
		l.opts.Cookie = l.r.cookies.makeCookie(&l.cookie, q.Cookie, from.Addr.Addr(), now)
	}
	if q.Keepalive && from.Stream {
		l.opts.Keepalive = keepaliveUnits(l.plan.Keepalive)
	}
}

// addSubnetToKey adds the client's subnet to the cache key if the name's route forwards it.
func (l *Worker) addSubnetToKey() {
	if l.q.Subnet == nil || !l.plan.anySubnet {
		return
	}
	if route := l.plan.route(l.q.Name()); route != nil && route.Subnet {
		l.q.AddSubnetToKey()
	}
}

// keepaliveUnits converts d to the units of RFC 7828, 100 ms.
func keepaliveUnits(d time.Duration) uint16 {
	return uint16(min(d/(100*time.Millisecond), 1<<16-1))
}

// finishReply counts and logs the reply dst[start:] of AnswerFromMemory, and adds the explanation that
// a client asked for.
func (l *Worker) finishReply(source Source, dst []byte, start int, from *wire.Peer, now time.Time) []byte {
	rcode := int(dst[start+3] & 0x0f)
	l.tally.response(source, rcode)
	if l.plan.QueryLog != nil {
		l.plan.QueryLog.record(context.Background(), &l.q.Question, from, source, rcode, l.r.now().Sub(now)+l.elapsed)
	}
	if l.q.Explain {
		dst = l.explain(source, dst, now)
	}
	return dst
}

// Resolve takes over the query that AnswerFromMemory missed. It joins or starts the in-flight query
// for its key, or starts a transfer.
func (l *Worker) Resolve(from *wire.Peer, now time.Time, to wire.Replier) {
	if isTransfer(l.q.Type) {
		l.r.startTransfer(l.plan, l.waiter(nil, from, now, to), from.Addr.Addr(), &l.batch)
		return
	}
	l.addrProven = from.Stream || l.r.cookies.isValid(l.q.Cookie, from.Addr.Addr(), now)
	l.join(from, now, to)
}

// Flush ends the batch at the time now: it sends the collected queries and replies, and adds the
// worker's counters to the resolver's.
func (l *Worker) Flush(now time.Time) {
	l.batch.Flush()
	l.tally.flush(&l.r.counts, now)
}

// answerFromZone answers from the cluster zone if that has the name. Otherwise it returns false, and
// the query goes on unchanged or for the target of an alias from the zone.
func (l *Worker) answerFromZone(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	l.rotation++
	dst, result := l.plan.Zone.Answer(&l.q, l.zoneClient(), now, dst)
	switch result.Verdict {
	case zone.Answered:
		l.opts.EDE = result.EDE
		if result.Limited {
			l.tally.zoneShort++
		}
		if l.redirect.active {
			var done bool
			if dst, done = l.restoreAndReply(SourceZone, from, now, dst, start); !done {
				return l.answerFromZone(from, now, dst)
			}
			return dst, true
		}
		dst = l.q.Reply(dst, start, &l.opts)
		return l.finishReply(SourceZone, dst, start, from, now), true
	case zone.NotReady:
		l.opts.EDE = result.EDE
		dst, _ = l.answerEmpty(SourceZone, wire.RcodeServFail, from, now, dst)
		return dst, true
	case zone.Alias:
		l.opts.EDE = result.EDE
		if !l.followAlias(dst, start, len(result.Target)) {
			dst, _ = l.answerEmpty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
			return dst, true
		}
		return dst[:start], false
	case zone.UseFallback:
		if l.plan.Unreachable != nil && l.plan.Unreachable() {
			return l.answerZoneFallback(from, now, dst)
		}
	case zone.NotInZone:
	}
	return dst, false
}

// zoneClient returns the properties of the client that the zone's answer depends on.
func (l *Worker) zoneClient() zone.Client {
	return zone.Client{MaxSize: l.q.AnswerLimit(&l.opts), Rotation: l.rotation}
}

// answerZoneFallback answers from the zone a name that no upstream can answer, if the zone can.
func (l *Worker) answerZoneFallback(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	dst, result := l.plan.Zone.AnswerStale(&l.q, l.zoneClient(), now, dst)
	if result.Verdict != zone.Answered {
		return dst[:start], false
	}
	l.opts.EDE = result.EDE
	if dst, done := l.restoreAndReply(SourceZone, from, now, dst, start); done {
		return dst, true
	}
	return l.answerZoneFallback(from, now, dst[:start])
}

// useZoneFallback sets the outcome from the zone if upstream gave no answer, and reports whether the
// zone has one.
func (d *responseBuilder) useZoneFallback(z *zone.Zone, q *wire.Query, now time.Time) bool {
	if z == nil {
		return false
	}
	msg, said := z.AnswerStale(q, zone.Client{MaxSize: wire.MaxMessage}, now, d.buf[:0])
	if said.Verdict != zone.Answered {
		return false
	}
	d.buf, d.result = msg, outcome{msg: msg, source: SourceZone, ede: said.EDE}
	return true
}

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
func (l *Worker) answerFault(rcode int, pkt []byte, from *wire.Peer, dst []byte) ([]byte, wire.Verdict) {
	if rcode == wire.NoReply {
		l.tally.dropped++
		return dst, wire.Dropped
	}
	l.tally.response(SourceRefused, rcode)
	switch rcode {
	case wire.RcodeFormErr:
		l.tally.malformed++
	case wire.RcodeBadVers:
		opts := wire.ReplyOptions{Limit: l.q.Limit(from.Stream, l.plan.UDPSize), UDPSize: l.plan.UDPSize, EDE: wire.EDENone}
		return l.q.AppendEmpty(dst, wire.RcodeBadVers, &opts), wire.Answered
	}
	return wire.AppendFault(dst, pkt, byte(rcode)), wire.Answered
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

// Cookie layout (RFC 9018 section 4): client cookie, version, reserved, time, hash. Lengths in bytes.
const (
	clientCookieLen = 8
	cookieLen       = clientCookieLen + 16
	cookieVersion   = 1
	cookieLife      = 3600 // seconds for which a cookie is valid
	cookieAhead     = 300  // seconds a cookie's time may be ahead of the clock
)

// A cookieSecret creates server cookies (RFC 7873, RFC 9018). Clients that check cookies can detect
// forged replies. Cookies are not required, but a query with a valid one has a verified source
// address, see clientKey.
type cookieSecret struct {
	k0, k1 uint64
}

func (j *cookieSecret) init(random io.Reader) error {
	var key [16]byte
	if _, err := io.ReadFull(random, key[:]); err != nil {
		return fmt.Errorf("generating the cookie secret: %w", err)
	}
	j.k0 = binary.LittleEndian.Uint64(key[:])
	j.k1 = binary.LittleEndian.Uint64(key[8:])
	return nil
}

// makeCookie writes to dst the full cookie for a client at addr that sent received, of at least eight
// bytes, and returns it.
func (j *cookieSecret) makeCookie(dst *[cookieLen]byte, received []byte, addr netip.Addr, now time.Time) []byte {
	copy(dst[:], received[:clientCookieLen])
	copy(dst[clientCookieLen:], []byte{cookieVersion, 0, 0, 0}) // three reserved bytes
	binary.BigEndian.PutUint32(dst[12:], uint32(now.Unix()))
	binary.LittleEndian.PutUint64(dst[16:], j.hash(dst[:16], addr))
	return dst[:]
}

// hash returns the hash of RFC 9018 section 4.4 over the cookie without its hash and the client's
// address.
func (j *cookieSecret) hash(head []byte, addr netip.Addr) uint64 {
	var in [16 + 16]byte
	n := copy(in[:16], head)
	if addr.Is4() {
		a := addr.As4()
		n += copy(in[16:], a[:])
	} else {
		a := addr.As16()
		n += copy(in[16:], a[:])
	}
	return siphash.Hash(j.k0, j.k1, in[:n])
}

// isValid reports whether this process issued the cookie to a client at addr within the last hour (RFC
// 9018 section 4.3). After a restart the secret is new, and the first reply contains a valid cookie
// again.
func (j *cookieSecret) isValid(cookie []byte, addr netip.Addr, now time.Time) bool {
	if len(cookie) != cookieLen || cookie[clientCookieLen] != cookieVersion {
		return false
	}
	age := int32(uint32(now.Unix()) - binary.BigEndian.Uint32(cookie[12:])) // serial number arithmetic (RFC 1982)
	return -cookieAhead <= age && age <= cookieLife &&
		binary.LittleEndian.Uint64(cookie[16:]) == j.hash(cookie[:16], addr)
}
