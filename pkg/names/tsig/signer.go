// SPDX-License-Identifier: Apache-2.0

package tsig

import (
	"crypto/hmac"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// fudge is the clock difference that the receiver of a reply may accept, in seconds (RFC 8945 section 10).
const fudge = 300

// ErrFormat is the error of a query whose TSIG record is malformed or not the last record: FORMERR (RFC 8945 section 5.2).
var ErrFormat = errors.New("malformed TSIG record")

// A Signer signs the messages of the reply to one query.
type Signer struct {
	// Failed is why the query is not authentic: dns.RcodeBadKey, RcodeBadSig, RcodeBadTime or RcodeBadTrunc. 0: it is
	// authentic. If not, the reply has the rcode NOTAUTH.
	Failed uint16

	key    Key    // key of the query; it has no secret if the query has no valid MAC: messages are not signed then (RFC 8945 section 5.3.2)
	mac    []byte // MAC of the query, then of the last signed message
	query  *dns.TSIG
	signed bool // a message of the reply was signed
}

// Verify verifies the query msg, whose TSIG record begins at the offset tsig. It keeps no reference to msg. Its only error is ErrFormat.
func (k *Keys) Verify(msg []byte, tsig int, now time.Time) (*Signer, error) {
	rr, end, err := dns.UnpackRR(msg, tsig)
	t, ok := rr.(*dns.TSIG)
	if err != nil || !ok || end != len(msg) || t.Hdr.Class != dns.ClassANY || t.Hdr.Ttl != 0 { // RFC 8945 section 4.2
		return nil, ErrFormat
	}
	mac, err := hex.DecodeString(t.MAC)
	if err != nil {
		return nil, ErrFormat
	}
	s := &Signer{query: t}
	keys := k.All()
	i := slices.IndexFunc(keys, func(k Key) bool {
		return k.Name == dns.CanonicalName(t.Hdr.Name) && k.Algorithm == dns.CanonicalName(t.Algorithm)
	})
	if i < 0 {
		s.Failed = dns.RcodeBadKey
		s.key = Key{Name: t.Hdr.Name, Algorithm: t.Algorithm}
		return s, nil
	}
	key := keys[i]
	unsigned := slices.Clone(msg[:tsig])
	binary.BigEndian.PutUint16(unsigned, t.OrigId)
	binary.BigEndian.PutUint16(unsigned[10:], binary.BigEndian.Uint16(unsigned[10:])-1)
	want := key.sum(unsigned, nil, t, false)
	if len(mac) > len(want) || len(mac) < max(10, len(want)/2) { // RFC 8945 section 5.2.2.1
		return nil, ErrFormat
	}
	s.key, s.mac = key, mac
	age := int64(math.MaxInt64)
	if t.TimeSigned < 1<<48 {
		age = now.Unix() - int64(t.TimeSigned)
	}
	switch {
	case !hmac.Equal(mac, want[:len(mac)]):
		s.Failed, s.key.Secret, s.mac = dns.RcodeBadSig, nil, nil
	case age > int64(t.Fudge) || -age > int64(t.Fudge):
		s.Failed = dns.RcodeBadTime
	case len(mac) < len(want):
		s.Failed = dns.RcodeBadTrunc
	}
	return s, nil
}

// Reason returns why the query is refused, for a log.
func (s *Signer) Reason() string {
	return "key " + s.key.Name + ": " + dns.RcodeToString[int(s.Failed)]
}

// Room returns the most bytes that Sign adds to a message.
func (s *Signer) Room() int {
	const numbers, mac, clock = 28, 64, 6
	return len(s.key.Name) + 1 + len(s.key.Algorithm) + 1 + numbers + mac + clock
}

// Sign appends the TSIG record to the message msg[start:], the next one of the reply.
func (s *Signer) Sign(msg []byte, start int, now time.Time) []byte {
	reply := msg[start:]
	t := &dns.TSIG{
		Hdr:       dns.RR_Header{Name: s.key.Name, Rrtype: dns.TypeTSIG, Class: dns.ClassANY},
		Algorithm: s.key.Algorithm, TimeSigned: uint64(now.Unix()), Fudge: fudge, OrigId: binary.BigEndian.Uint16(reply), Error: s.Failed,
	}
	if s.Failed == dns.RcodeBadTime { // RFC 8945 section 5.2.3
		var clock [8]byte
		binary.BigEndian.PutUint64(clock[:], t.TimeSigned)
		t.TimeSigned, t.OtherLen, t.OtherData = s.query.TimeSigned, 6, hex.EncodeToString(clock[2:])
	}
	if len(s.key.Secret) > 0 {
		s.mac = s.key.sum(reply, s.mac, t, s.signed)
		s.signed = true
		t.MACSize, t.MAC = uint16(len(s.mac)), hex.EncodeToString(s.mac)
	}
	buf := make([]byte, s.Room())
	n, err := dns.PackRR(t, buf, 0, nil, false)
	if err != nil {
		return msg // cannot be: the name of the key came from a packet or was checked by parse
	}
	binary.BigEndian.PutUint16(reply[10:], binary.BigEndian.Uint16(reply[10:])+1)
	return append(msg, buf[:n]...)
}

// sum returns the MAC of a message, which does not have its TSIG record t yet. before is the MAC of the query, or of the previous
// message; nil: none. next: the message is not the first of a reply (RFC 8945 section 5.3.1).
func (k *Key) sum(msg, before []byte, t *dns.TSIG, next bool) []byte {
	h := hmac.New(hashOf(k.Algorithm), k.Secret)
	if before != nil {
		h.Write(binary.BigEndian.AppendUint16(nil, uint16(len(before))))
		h.Write(before)
	}
	h.Write(msg)
	var timers [8]byte
	binary.BigEndian.PutUint64(timers[:], t.TimeSigned<<16|uint64(t.Fudge))
	if next {
		h.Write(timers[:])
		return h.Sum(nil)
	}
	name, _ := wire.AppendName(nil, k.Name) // cannot fail: parse has checked the name
	h.Write(name)
	h.Write([]byte{0, dns.ClassANY, 0, 0, 0, 0})
	name, _ = wire.AppendName(name[:0], k.Algorithm)
	h.Write(name)
	h.Write(timers[:])
	h.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, t.Error), t.OtherLen))
	other, _ := hex.DecodeString(t.OtherData) // cannot fail: Sign or miekg/dns has encoded it
	h.Write(other)
	return h.Sum(nil)
}
