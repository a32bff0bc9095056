// SPDX-License-Identifier: Apache-2.0

package push

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A builder makes and sends the PUSH messages of a session. The session's push is locked.
type builder struct {
	session *Session
	buf     []byte
	push    dso.Push
	empty   int     // size of a message without changes
	names   []*name // names in the message
	sent    []*name // names in the messages that were sent
	reader  reader
}

// builder returns a builder for a session. The caller calls free.
func (s *Server) builder(c *Session) *builder {
	b, ok := s.builders.Get().(*builder)
	if !ok {
		b = new(builder)
	}
	b.session, b.sent = c, b.sent[:0]
	b.begin()
	return b
}

func (b *builder) free() {
	clear(b.names[:cap(b.names)])
	clear(b.sent[:cap(b.sent)])
	b.session.server.builders.Put(b)
}

func (b *builder) begin() {
	b.push.Begin(b.buf[:0])
	b.empty, b.names = b.push.Len(), b.names[:0]
}

// end sends the message. It returns false if the client does not read.
func (b *builder) end() bool {
	if b.push.Len() == b.empty {
		return true
	}
	b.buf = b.push.End()
	if !b.session.to.Push(b.buf) {
		return false
	}
	b.sent = append(b.sent, b.names...)
	s := b.session.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Pushes++
	s.stats.Pushed += uint64(len(b.names))
	return true
}

// add adds the removal of a name's records, and its records if they fit. It sends the message if that is full.
func (b *builder) add(n *name) bool {
	for {
		before := b.push.Len()
		removed := b.push.RemoveName([]byte(n.wire))
		if removed {
			with := b.push.Len()
			if b.addRecords(n) {
				return true
			}
			b.push.Cut(with)
			if before == b.empty { // too many records: the removal alone
				b.names = append(b.names, n)
				return true
			}
		}
		b.push.Cut(before)
		if !b.end() {
			return false
		}
		b.begin()
	}
}

// addRecords adds the records of a name. It returns false if they do not fit. It also notes what the name leads to, as an alias.
func (b *builder) addRecords(n *name) bool {
	s := b.session.server
	r := &b.reader
	r.zones, r.name, r.targets, r.truncated = s.cfg.Zones(), []byte(n.wire), r.targets[:0], false
	fits, now := true, s.cfg.Now()
	for _, rrtype := range typesAt(n.wire) {
		more := r.read(rrtype, now, func(c dso.Change) { fits = fits && b.push.Add(c) })
		if fits = fits && !r.truncated; !more || !fits {
			break
		}
	}
	var aliases []string
	for _, target := range r.targets {
		if owner := s.cfg.Owner(target); owner != nil {
			aliases = append(aliases, string(owner))
		}
	}
	s.mu.Lock()
	if len(n.subscribers) > 0 && (len(aliases) > 0 || s.index.aliases[n] != nil) {
		s.index.follow(n, aliases)
	}
	s.mu.Unlock()
	if fits {
		b.names = append(b.names, n)
	}
	return fits
}

// typesAt returns the types that a name of the zones can have.
func typesAt(name string) []uint16 {
	var buf [16]byte
	if addr, _ := wire.ReverseAddr([]byte(name), &buf); addr != nil {
		return []uint16{wire.TypePTR}
	}
	return []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeSRV}
}

// A reader reads the records of a name from the zones.
type reader struct {
	zones     zone.Zones
	name      []byte
	targets   [][]byte // of aliases
	truncated bool     // the set is larger than a message
	packet    []byte
	query     wire.Query
	answer    []byte
	message   wire.Message
}

// read calls do with the records of a type. more is false if the name has an alias, or does not exist: then no type has others.
func (r *reader) read(rrtype uint16, now time.Time, do func(dso.Change)) (more bool) {
	r.packet = append(append(r.packet[:0], 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0), r.name...)
	r.packet = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(r.packet, rrtype), wire.ClassIN)
	if r.query.Parse(r.packet) != wire.RcodeSuccess {
		return false
	}
	var result zone.Result
	r.answer, result = r.zones.Answer(&r.query, zone.Client{MaxSize: dso.MaxPush}, now, r.answer[:0])
	m := &r.message
	if result.Verdict != zone.Answered && result.Verdict != zone.Alias || m.Parse(r.answer) != nil {
		return false
	}
	r.truncated = m.Truncated() || result.Limited
	more = m.Rcode() == wire.RcodeSuccess
	for _, record := range m.Records {
		if record.Section != wire.Answer {
			continue
		}
		data := m.Raw[record.Data() : record.Data()+int(record.Size)]
		target := m.Target(record)
		if record.Type == wire.TypePTR {
			target = record.Data()
		}
		if target >= 0 {
			full := m.AppendName(nil, target)
			if record.Type == wire.TypeCNAME {
				r.targets, more = append(r.targets, full), false
			}
			before := target - record.Data()
			data = append(bytes.Clone(data[:before]), full...) // names are not compressed
		}
		if bytes.Equal(m.AppendName(nil, int(record.Owner)), r.name) {
			do(dso.Change{Name: r.name, Type: record.Type, Class: wire.ClassIN, TTL: m.RecordTTL(record), Data: data})
		}
	}
	return more
}
