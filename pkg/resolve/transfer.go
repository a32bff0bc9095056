// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// Who asks for the cluster zone as a whole, by AXFR (RFC 5936) or IXFR (RFC 1995).
//
//	not in Plan.TransferTo            REFUSED: the policy comes first and says nothing of zones
//	not for the zone's name           NOTAUTH                   (RFC 5936 section 2.2.1)
//	IXFR, nothing newer, or over UDP  the SOA record alone      (RFC 1995 sections 2 and 4)
//	AXFR over UDP                     REFUSED                   (RFC 5936 section 4.2 leaves it undefined)
//	the zone is not complete yet      SERVFAIL with EDE 14
//	maxTransfers are under way        SERVFAIL
//	else                              the zone; IXFR gets it whole, too (RFC 1995 section 4)
//
// What was begun and cannot be finished ends with a SERVFAIL message, which tells
// the client to throw away what it has (RFC 5936 section 2.2).

const (
	// maxTransfers are under way at once. Each keeps a CPU busy while its client
	// reads fast.
	maxTransfers = 4
	// maxTransferTime is how long one may take, so that clients that hardly read
	// do not keep others from theirs.
	maxTransferTime = 5 * time.Minute
)

var (
	errClientGone   = errors.New("the client takes no more")
	errTransferTime = errors.New("the client is too slow")
)

// transfer answers a query for a whole zone, or leaves it to Resolve if the answer
// is the zone.
func (l *Worker) transfer(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	q, z, start := &l.q, l.plan.Zone, len(dst)
	if !l.plan.mayTransfer(from.Addr.Addr()) {
		return l.empty(SourceRefused, wire.RcodeRefused, from, now, dst)
	}
	dst, serial, ours := l.version(now, dst)
	if !ours {
		return l.empty(SourceRefused, wire.RcodeNotAuth, from, now, dst[:start])
	}
	if q.Type == wire.TypeAXFR && !from.Stream {
		return l.empty(SourceRefused, wire.RcodeRefused, from, now, dst[:start])
	}
	if !z.Complete(now) {
		l.opts.EDE = wire.EDENotReady
		return l.empty(SourceZone, wire.RcodeServFail, from, now, dst[:start])
	}
	if q.Type == wire.TypeIXFR && (!from.Stream || q.HasSerial && !newer(serial, q.Serial)) {
		dst = q.Reply(dst, start, &l.opts)
		return l.answered(SourceZone, dst, start, from, now), wire.Answered
	}
	return dst[:start], wire.Missed
}

// version appends the SOA record as the answer to the query, and gives its serial.
// It is false if the name that was asked is not the zone's.
func (l *Worker) version(now time.Time, dst []byte) (out []byte, serial uint32, ours bool) {
	if l.plan.Zone == nil {
		return dst, 0, false
	}
	start, q := len(dst), l.q
	q.Type = wire.TypeSOA
	dst, result := l.plan.Zone.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, now, dst)
	var m wire.Message
	if result.Verdict != zone.Answered || m.Parse(dst[start:]) != nil || len(m.Records) == 0 {
		return dst, 0, false
	}
	soa := m.Records[0]
	if soa.Section != wire.Answer || soa.Type != wire.TypeSOA {
		return dst, 0, false
	}
	return dst, soaSerial(m.Raw[soa.Data() : soa.Data()+int(soa.Size)]), true
}

// soaSerial is the serial number in a SOA record's RDATA.
func soaSerial(data []byte) uint32 { return binary.BigEndian.Uint32(data[len(data)-20:]) }

// newer tells whether serial a is after b (RFC 1982 section 3.2).
func newer(a, b uint32) bool { return int32(a-b) > 0 }

// mayTransfer tells whether the client may have the whole zone.
func (p *Plan) mayTransfer(client netip.Addr) bool {
	client = client.WithZone("")
	return slices.ContainsFunc(p.TransferTo, func(prefix netip.Prefix) bool { return prefix.Contains(client) })
}

// transfer begins a transfer to a client, if there is room for one more.
func (r *Resolver) transfer(plan *Plan, w waiter, client netip.Addr, batch *wire.SendBatch) {
	to, ok := w.to.(wire.Stream)
	if !ok { // a transport that has no streams after all
		r.reply(plan, &w, SourceRefused, w.ask.AppendEmpty(nil, wire.RcodeRefused, &w.opts), w.since, batch)
		return
	}
	if r.transfers.Add(1) > maxTransfers {
		r.transfers.Add(-1)
		r.counts.shed[ShedTransfers].Add(1)
		r.shed(ShedTransfers, &w, plan, batch)
		return
	}
	r.flying.Go(func() {
		defer r.transfers.Add(-1)
		t := transfer{r: r, plan: plan, waiter: w, client: client, stream: to}
		t.run()
	})
}

// A transfer is the zone on its way to one client.
type transfer struct {
	waiter
	r      *Resolver
	plan   *Plan
	client netip.Addr
	stream wire.Stream
	axfr   axfrMessage
	batch  wire.SendBatch // flushed when it is over

	begun   time.Time // when the first message was ready: how long that took is what is counted
	serial  uint32
	records int
	octets  int
}

// run sends the zone, and whatever happens one end of it.
func (t *transfer) run() {
	defer t.batch.Flush()
	defer func() {
		if defect := recover(); defect != nil {
			t.r.panicked("transfer", defect)
			t.fail(wire.EDEOther)
		}
	}()
	t.axfr.begin(t.ask.QuestionSection())
	err := t.plan.Zone.Records(t.r.now(), t.put)
	switch {
	case err == nil:
		t.finish()
		return
	case errors.Is(err, errClientGone):
		t.end(nil, &t.batch)
	case errors.Is(err, zone.ErrNotReady):
		t.fail(wire.EDENotReady)
	default:
		t.fail(wire.EDEOther)
	}
	t.r.log.Warn("zone transfer failed",
		"client", t.client, "records", t.records, "took", t.r.now().Sub(t.since), "err", err)
}

// put adds a record, after sending what has no room for it.
func (t *transfer) put(record zone.Record) error {
	if !t.axfr.fits(&record) {
		if err := t.send(); err != nil {
			return err
		}
		t.axfr.begin(t.ask.QuestionSection())
	}
	t.axfr.add(&record)
	if t.records == 0 {
		t.serial = soaSerial(record.Data)
	}
	t.records++
	return nil
}

// send sends a message with more to follow.
func (t *transfer) send() error {
	msg := t.sealed()
	if !t.stream.SendMessage(msg) {
		return errClientGone
	}
	if t.r.now().Sub(t.since) > maxTransferTime {
		return errTransferTime
	}
	return nil
}

// sealed is the AXFR message as a reply to the client.
func (t *transfer) sealed() []byte {
	if t.begun.IsZero() {
		t.begun = t.r.now()
	}
	msg := t.ask.Reply(t.axfr.message(), 0, &t.opts)
	t.octets += len(msg)
	return msg
}

// finish sends the last message.
func (t *transfer) finish() {
	msg := t.sealed()
	t.r.reply(t.plan, &t.waiter, SourceTransfer, msg, t.begun, &t.batch)
	t.r.log.Info("zone transferred",
		"client", t.client, "serial", t.serial, "records", t.records, "octets", t.octets, "took", t.r.now().Sub(t.since))
}

// fail ends the transfer with an error, unless it has ended.
func (t *transfer) fail(ede int) {
	if t.to == nil {
		return
	}
	t.opts.EDE = ede
	msg := t.ask.AppendEmpty(nil, wire.RcodeServFail, &t.opts)
	t.r.reply(t.plan, &t.waiter, SourceTransfer, msg, cmp.Or(t.begun, t.r.now()), &t.batch)
}
