// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Replies to zone transfer queries, by AXFR (RFC 5936) or IXFR (RFC 1995):
//
//	not in Plan.TransferTo            REFUSED, whatever the zone
//	no signature, with Plan.Keys      REFUSED
//	a wrong signature                 NOTAUTH, or FORMERR       (RFC 8945 section 5.2)
//	not for a zone's name             NOTAUTH                   (RFC 5936 section 2.2.1)
//	IXFR, nothing newer, or over UDP  the SOA record alone      (RFC 1995 sections 2 and 4)
//	AXFR over UDP                     REFUSED                   (RFC 5936 section 4.2 leaves it undefined)
//	the zone is not complete yet      SERVFAIL with EDE 14
//	maxTransfers are running          SERVFAIL
//	IXFR, the version is known        what has changed since    (RFC 1995 section 4)
//	else                              the whole zone
//
// A transfer that cannot be completed ends with a SERVFAIL message, so that the client discards what
// it has (RFC 5936 section 2.2).

const (
	// maxTransfers bounds concurrent transfers. Each uses a whole CPU while its client reads
	// fast.
	maxTransfers = 4
	// maxTransferTime bounds one transfer, so that slow clients do not block others.
	maxTransferTime = 5 * time.Minute
)

var (
	errClientGone   = errors.New("client closed the connection")
	errTransferTime = errors.New("client too slow")
)

// appendSOA appends the SOA record of the zone as the answer to the query for its name.
func appendSOA(z *zone.Zone, q wire.Query, now time.Time, dst []byte) []byte {
	q.Type = wire.TypeSOA
	dst, _ = zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, now, dst)
	return dst
}

// soaSerial returns the serial number in the RDATA of an SOA record.
func soaSerial(data []byte) uint32 { return binary.BigEndian.Uint32(data[len(data)-20:]) }

// newer reports whether serial a is after b (RFC 1982 section 3.2).
func newer(a, b uint32) bool { return int32(a-b) > 0 }

// mayTransfer reports whether the client may transfer a zone.
func (p *Plan) mayTransfer(client netip.Addr) bool {
	client = client.WithZone("")
	return slices.ContainsFunc(p.TransferTo, func(prefix netip.Prefix) bool { return prefix.Contains(client) })
}

// verifies reports whether signatures of the client are verified: only clients that may transfer a zone are worth the work.
func (p *Plan) verifies(client netip.Addr) bool { return p.Keys != nil && p.mayTransfer(client) }

// start starts the transfer if fewer than maxTransfers run. signer signs its messages; nil: they are not signed.
func (t *transfer) start(signer *tsig.Signer, batch *wire.SendBatch) {
	r := t.r
	stream, ok := t.to.(wire.Stream)
	if !ok { // the transport has no streams
		r.reply(t.plan, &t.waiter, SourceRefused, &detail{}, t.ask.AppendEmpty(nil, wire.RcodeRefused, &t.opts), t.r.epoch.Add(t.since), batch)
		return
	}
	if t.stream = stream; signer != nil {
		t.stream = &signedStream{stream, signer, r.now}
		t.to = t.stream
	}
	if r.transfers.Add(1) > maxTransfers {
		r.transfers.Add(-1)
		r.counts.shed(ShedTransfers)
		r.replyShed(ShedTransfers, &t.waiter, t.plan, batch)
		return
	}
	r.pending.Go(func() {
		defer r.transfers.Add(-1)
		t.run()
	})
}

// A signedStream signs the messages of a transfer.
type signedStream struct {
	wire.Stream

	signer *tsig.Signer
	now    func() time.Time
}

// SendMessage implements [wire.Stream].
func (s *signedStream) SendMessage(msg []byte) bool {
	return s.Stream.SendMessage(s.signer.Sign(msg, 0, s.now()))
}

// Reply implements [wire.Replier].
func (s *signedStream) Reply(msg []byte, batch *wire.SendBatch) {
	if msg != nil {
		msg = s.signer.Sign(msg, 0, s.now())
	}
	s.Stream.Reply(msg, batch)
}

// A transfer sends a zone to one client.
type transfer struct {
	waiter
	r      *Resolver
	plan   *Plan
	zone   *zone.Zone
	client zone.Secondary
	stream wire.Stream
	axfr   axfrMessage
	batch  wire.SendBatch // flushed when the transfer ends

	readyAt time.Time // when the first message was ready; the counted duration ends here
	serial  uint32
	records int
	bytes   int
	partial bool // incremental: only the changes are sent
}

// elapsed returns the time since the query arrived.
func (t *transfer) elapsed() time.Duration { return t.r.now().Sub(t.r.epoch) - t.since }

// run sends the zone, and ends the reply in all cases.
func (t *transfer) run() {
	defer t.batch.Flush()
	defer func() {
		if defect := recover(); defect != nil {
			t.r.panicked("transfer", defect)
			t.fail(wire.EDEOther)
		}
	}()
	t.axfr.begin(t.ask.QuestionSection())
	var err error
	t.partial, err = t.zone.Records(t.r.now(), t.client, t.addRecord)
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
		"client", t.client.Addr, "records", t.records, "took", t.elapsed(), "err", err)
}

// addRecord adds a record, and sends the current message first if it is full.
func (t *transfer) addRecord(record zone.Record) error {
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

// send sends the current message, which more messages follow.
func (t *transfer) send() error {
	msg := t.reply()
	if !t.stream.SendMessage(msg) {
		return errClientGone
	}
	if t.elapsed() > maxTransferTime {
		return errTransferTime
	}
	return nil
}

// reply returns the current message as a reply to the client.
func (t *transfer) reply() []byte {
	if t.readyAt.IsZero() {
		t.readyAt = t.r.now()
	}
	msg := t.ask.Reply(t.axfr.message(), 0, &t.opts)
	t.bytes += len(msg)
	return msg
}

// finish sends the last message.
func (t *transfer) finish() {
	msg, kind := t.reply(), 0
	if t.partial {
		kind = 1
	}
	t.r.counts.add(countTransfers + kind)
	t.r.reply(t.plan, &t.waiter, SourceTransfer, &detail{}, msg, t.readyAt, &t.batch)
	t.r.log.Info("zone transfer complete", "client", t.client.Addr, "kind", TransferKinds()[kind], "serial", t.serial, "records", t.records, "bytes", t.bytes, "took", t.elapsed())
}

// fail ends the transfer with an error, unless it has ended.
func (t *transfer) fail(ede int) {
	if t.to == nil {
		return
	}
	t.opts.EDE = ede
	msg := t.ask.AppendEmpty(nil, wire.RcodeServFail, &t.opts)
	t.r.reply(t.plan, &t.waiter, SourceTransfer, &detail{}, msg, cmp.Or(t.readyAt, t.r.now()), &t.batch)
}

const (
	// axfrMessageSize is the size of a transfer message in bytes. Compression pointers do not
	// reach farther, so longer messages would save nothing.
	axfrMessageSize = 16 << 10
	// axfrOPTRoom is the number of bytes of a message that are reserved for the OPT record.
	axfrOPTRoom = 128
	// recordFixedLen is the length of a record between owner and RDATA.
	recordFixedLen = 10
)

// An axfrMessage is one message of a transfer: header, question, answer section. Owner names are
// compressed.
type axfrMessage struct {
	buf   []byte
	count int // records

	names map[string]int // offsets in buf of the names written so far, by canonical name
}

// begin starts a message with the question.
func (a *axfrMessage) begin(question []byte) {
	const bitsAnswer = 0x84 // third byte of the header: QR, AA
	a.count = 0
	a.buf = append(a.buf[:0], 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	a.buf = append(a.buf, question...)
	name := make([]byte, len(question)-4) // without type and class
	wire.Canonical(name, question[:len(name)])
	if a.names == nil {
		a.names = map[string]int{}
	}
	clear(a.names)
	for off := 0; name[off] != 0; off += 1 + int(name[off]) {
		a.names[string(name[off:])] = wire.HeaderLen + off
	}
}

// fits reports whether there is room for the record. The first record always fits.
func (a *axfrMessage) fits(r *zone.Record) bool {
	return a.count == 0 || len(a.buf)+len(r.Owner)+recordFixedLen+len(r.Data)+axfrOPTRoom <= axfrMessageSize
}

// add appends the record.
func (a *axfrMessage) add(r *zone.Record) {
	a.appendOwner(r.Owner)
	a.buf = binary.BigEndian.AppendUint16(a.buf, r.Type)
	a.buf = binary.BigEndian.AppendUint16(a.buf, wire.ClassIN)
	a.buf = binary.BigEndian.AppendUint32(a.buf, r.TTL)
	a.buf = binary.BigEndian.AppendUint16(a.buf, uint16(len(r.Data)))
	a.buf = append(a.buf, r.Data...)
	a.count++
}

// appendOwner appends the name. It compresses the longest suffix that the message already has.
func (a *axfrMessage) appendOwner(name []byte) {
	for off := 0; name[off] != 0; off += 1 + int(name[off]) {
		if at, ok := a.names[string(name[off:])]; ok {
			a.buf = binary.BigEndian.AppendUint16(a.buf, 0xc000|uint16(at))
			return
		}
		a.names[string(name[off:])] = len(a.buf)
		a.buf = append(a.buf, name[off:off+1+int(name[off])]...)
	}
	a.buf = append(a.buf, 0)
}

// message sets the record count and returns the message. It is valid until begin.
func (a *axfrMessage) message() []byte {
	binary.BigEndian.PutUint16(a.buf[6:], uint16(a.count))
	return a.buf
}
