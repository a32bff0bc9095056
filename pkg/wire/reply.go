// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net/netip"
)

// ReplyOptions are the parts of a reply that do not come from the stored answer. Without an OPT
// record in the query only Limit applies.
type ReplyOptions struct {
	Limit     int     // most bytes of the reply
	Cookie    []byte  // whole RFC 7873 cookie, client part first; nil: none
	EDE       int     // RFC 8914 code, or EDENone
	EDEText   *string // its text with EDEBlocked, ignored with other codes: at most MaxEDEText bytes; nil: none
	UDPSize   uint16  // bytes that this server accepts over UDP
	Keepalive uint16  // RFC 7828 idle time-out in units of 100 ms; 0: none
	Pad       bool    // add the RFC 7830 option, as far as Limit allows; not together with AppendExplanation
}

// Reply turns the stored answer buf[start:], which has q's question and no OPT record, into the
// reply to q in place. It sets q's ID, spelling and flags, truncates to the limit at whole RRsets,
// or at single addresses of the answer section, and adds an OPT record if q had one. It returns buf
// grown or shortened; bytes before start do not change.
//
// AA stays as stored: only answers of the cluster zone have it. TC stays too: the zone has RRsets
// larger than any message. AD is kept only for a client that asked for it (RFC 6840 section 5.7).
func (q *Question) Reply(buf []byte, start int, s *ReplyOptions) []byte {
	msg := buf[start:]
	binary.BigEndian.PutUint16(msg, q.ID)
	kept := msg[2] & (bitAA | bitTC)
	msg[2], msg[3] = q.flags(msg[3])
	msg[2] |= kept
	copy(msg[HeaderLen:], q.question)
	buf = buf[:start+len(Truncate(msg, s.Limit-q.optLen(s)))]
	return q.appendOPT(buf, start, s, 0)
}

// flags returns bytes 2 and 3 of the header of a reply to q. It keeps rcode and AD of the stored
// byte 3.
func (q *Question) flags(stored byte) (third, fourth byte) {
	third, fourth = bitQR, bitRA|stored&rcodeMask
	if q.RD {
		third |= bitRD
	}
	if q.CD {
		fourth |= bitCD
	}
	if q.AD || q.DO {
		fourth |= stored & bitAD
	}
	return third, fourth
}

// AppendEmpty appends a reply to q with rcode and no records but an OPT.
func (q *Question) AppendEmpty(dst []byte, rcode int, s *ReplyOptions) []byte {
	start := len(dst)
	dst = q.appendHeader(dst, rcode)
	return q.appendOPT(dst, start, s, byte(rcode>>4))
}

// AppendRecord appends a reply to q with one record, owned by the name in the question. ttl is in
// seconds.
func (q *Question) AppendRecord(dst []byte, rrtype uint16, ttl uint32, data []byte, s *ReplyOptions) []byte {
	start := len(dst)
	dst = q.appendHeader(dst, RcodeSuccess)
	dst[start+7] = 1
	dst = append(dst, 0xc0, HeaderLen)
	dst = binary.BigEndian.AppendUint16(dst, rrtype)
	dst = binary.BigEndian.AppendUint16(dst, q.Class)
	dst = binary.BigEndian.AppendUint32(dst, ttl)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(data)))
	dst = append(dst, data...)
	return q.appendOPT(dst, start, s, 0)
}

// appendHeader appends the header of a reply, and its question if q has one.
func (q *Question) appendHeader(dst []byte, rcode int) []byte {
	third, fourth := q.flags(byte(rcode) & rcodeMask)
	dst = binary.BigEndian.AppendUint16(dst, q.ID)
	dst = append(dst, third, fourth, 0, byte(min(1, len(q.question))), 0, 0, 0, 0, 0, 0)
	return append(dst, q.question...)
}

// AppendFault appends the answer to the faulty packet pkt, which has at least a header: a bare
// header with ID, opcode and RD of pkt (RFC 8906 section 3).
func AppendFault(dst, pkt []byte, rcode byte) []byte {
	return append(dst, pkt[0], pkt[1], bitQR|pkt[2]&(opcodeMask|bitRD), rcode&rcodeMask, 0, 0, 0, 0, 0, 0, 0, 0)
}

// Lengths in bytes of the OPT record and of options with their code and length.
const (
	optFixed     = 11
	keepaliveLen = 4 + 2
	edeLen       = 4 + 2
)

// AnswerLimit returns the most bytes of an answer that Reply does not truncate. It reserves room
// for an Extended DNS Error if the client may get one.
func (q *Question) AnswerLimit(s *ReplyOptions) int {
	room := s.Limit - q.optLen(s)
	if q.EDNS && s.EDE == EDENone {
		room -= edeLen
	}
	return room
}

// MaxEDEText is the longest text of an Extended DNS Error in bytes.
const MaxEDEText = 100

// edeText returns the text of the Extended DNS Error, empty for none.
func (s *ReplyOptions) edeText() string {
	if s.EDE != EDEBlocked || s.EDEText == nil {
		return ""
	}
	return *s.EDEText
}

// optLen returns the length in bytes of the OPT record of the reply to q.
func (q *Question) optLen(s *ReplyOptions) int {
	if !q.EDNS {
		return 0
	}
	n := optFixed
	if s.Cookie != nil {
		n += 4 + len(s.Cookie)
	}
	if s.Keepalive != 0 {
		n += keepaliveLen
	}
	if s.EDE != EDENone {
		n += edeLen + len(s.edeText())
	}
	return n
}

// appendOPT appends the OPT record to the message at start, if q had one.
func (q *Question) appendOPT(dst []byte, start int, s *ReplyOptions, rcodeHigh byte) []byte {
	if !q.EDNS {
		return dst
	}
	do := byte(0)
	if q.DO {
		do = 0x80
	}
	size := q.optLen(s) - optFixed
	dst = append(dst, 0, 0, byte(TypeOPT), byte(s.UDPSize>>8), byte(s.UDPSize), rcodeHigh, 0, do, 0, byte(size>>8), byte(size))
	if s.Cookie != nil {
		dst = append(dst, 0, optionCookie, 0, byte(len(s.Cookie)))
		dst = append(dst, s.Cookie...)
	}
	if s.Keepalive != 0 {
		dst = append(dst, 0, optionKeepalive, 0, 2, byte(s.Keepalive>>8), byte(s.Keepalive))
	}
	if s.EDE != EDENone {
		text := s.edeText()
		dst = append(dst, 0, optionEDE, 0, byte(2+len(text)), byte(s.EDE>>8), byte(s.EDE))
		dst = append(dst, text...)
	}
	count := dst[start+10 : start+12]
	binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
	if s.Pad {
		dst = q.appendPadding(dst, start, s)
	}
	return dst
}

// appendPadding appends the padding option to the OPT record at the end of the reply dst[start:]. A reply too large for the next multiple
// is padded to the limit.
func (q *Question) appendPadding(dst []byte, start int, s *ReplyOptions) []byte {
	length := len(dst) - start + 4
	if length > s.Limit {
		return dst
	}
	n := min((padReplyBlock-length%padReplyBlock)%padReplyBlock, s.Limit-length)
	options := q.optLen(s) - optFixed
	binary.BigEndian.PutUint16(dst[len(dst)-options-2:], uint16(options+4+n)) //nolint:gosec // less than a block and the other options
	dst = append(dst, 0, optionPadding, byte(n>>8), byte(n))
	return append(dst, make([]byte, n)...)
}

// AppendUpstream appends the query to send upstream for q: RD, the canonical name, our own OPT
// record with [SafeUDP] bytes, the client's DO and CD bits, and AD so that a validating upstream
// reports its result (RFC 6840 section 5.7). It forwards no option of the client but, if subnet is
// set, the client subnet. The ID is zero.
func (q *Query) AppendUpstream(dst []byte, subnet bool) []byte {
	fourth := byte(bitAD)
	if q.CD {
		fourth |= bitCD
	}
	dst = append(dst, 0, 0, bitRD, fourth, 0, 1, 0, 0, 0, 0, 0, 1)
	dst = q.AppendQuestion(dst)
	do := byte(0)
	if q.DO {
		do = 0x80
	}
	dst = append(dst, 0, 0, byte(TypeOPT), SafeUDP>>8, SafeUDP&0xff, 0, 0, do, 0)
	if !subnet || q.Subnet == nil {
		return append(dst, 0, 0)
	}
	n := len(q.Subnet)
	dst = append(dst, 0, byte(4+n), 0, optionSubnet, 0, byte(n))
	return append(dst, q.Subnet...)
}

// MaxExplanation is the longest text of an explanation in bytes. It fits the smallest reply beside
// all other options.
const MaxExplanation = ExplanationRoom - 4

// ExplanationRoom is the most bytes that an explanation adds to a reply. The caller subtracts it
// from the limit of a reply that gets one.
const ExplanationRoom = 160

// AppendExplanation appends text as OptionExplain to the OPT record at the end of buf. buf must end
// with a reply to q that was just made with s. Text beyond MaxExplanation is cut.
func (q *Question) AppendExplanation(buf []byte, s *ReplyOptions, text []byte) []byte {
	if !q.EDNS {
		return buf
	}
	text = text[:min(len(text), MaxExplanation)]
	options := q.optLen(s) - optFixed
	length := buf[len(buf)-options-2 : len(buf)-options]
	binary.BigEndian.PutUint16(length, uint16(options+4+len(text)))
	buf = append(buf, byte(OptionExplain>>8), byte(OptionExplain&0xff), 0, byte(len(text)))
	return append(buf, text...)
}

// Truncate cuts msg, a parsed answer without OPT record, to at most limit bytes in place, at the end
// of an RRset. It corrects the counts and sets TC unless it removes additional records only. limit
// must leave room for the question.
//
// Of an address RRset in the answer section it keeps what fits, which RFC 2181 allows with TC.
// Clients that never retry over TCP (musl before 1.2.4) then get some addresses of a large service
// instead of none.
func Truncate(msg []byte, limit int) []byte {
	if len(msg) <= limit {
		return msg
	}
	end := plainNameEnd(msg, HeaderLen) + 4
	boundary := end                // the last offset, at most end, at which msg may be cut
	var counts, kept sectionCounts // numbers of the records before end, and before boundary
	for section := range Additional + 1 {
		previous := -1
		for range binary.BigEndian.Uint16(msg[6+2*section:]) {
			fixed := anyNameEnd(msg, end)
			if previous < 0 || section == Answer && isAddress(msg, fixed) || !sameSet(msg, previous, end) {
				boundary, kept = end, counts
			}
			previous, end = end, fixed+10+int(binary.BigEndian.Uint16(msg[fixed+8:]))
			counts[section]++
			if end > limit {
				kept.put(msg)
				setTruncated(msg, section)
				return msg[:boundary]
			}
		}
	}
	return msg[:end]
}

// DenyType turns msg, an answer, from NXDOMAIN into NODATA if its answer section has no record, such as an alias. It then
// clears AD, because no server validated that.
func DenyType(msg []byte) {
	if msg[3]&rcodeMask == RcodeNXDomain && msg[6]|msg[7] == 0 {
		msg[3] &^= rcodeMask | bitAD
	}
}

// sectionCounts are the numbers of records by section.
type sectionCounts [Additional + 1]uint16

// put writes the counts into the header of msg.
func (c *sectionCounts) put(msg []byte) {
	for section, n := range c {
		binary.BigEndian.PutUint16(msg[6+2*section:], n)
	}
}

// setTruncated sets TC of msg, which lacks records from the given section on. If these are additional
// records only, it leaves TC as it is (RFC 2181 section 9).
func setTruncated(msg []byte, section uint8) {
	if section < Additional {
		msg[2] |= bitTC
	}
}

// isAddress reports whether the record whose owner ends at off is an A or AAAA record.
func isAddress(msg []byte, off int) bool {
	rrtype := binary.BigEndian.Uint16(msg[off:])
	return rrtype == TypeA || rrtype == TypeAAAA
}

// sameSet reports whether the records at a and b belong to the same RRset.
func sameSet(msg []byte, a, b int) bool {
	x, y := anyNameEnd(msg, a), anyNameEnd(msg, b)
	return string(msg[x:x+4]) == string(msg[y:y+4]) && sameName(msg, a, b)
}

// A Peer is the client that sent a query: its address and its transport.
type Peer struct {
	Addr   netip.AddrPort // IPv4 addresses in 4-byte form
	Stream bool           // TCP: no size limit below 64 KiB
	TLS    bool           // encrypted, besides Stream
}

// A Verdict is the outcome of an attempt to answer a query from memory.
type Verdict uint8

// The verdicts.
const (
	Answered Verdict = iota // a reply was appended
	Missed                  // the answer is not in memory: call Resolve
	Dropped                 // no reply is due
)

// A Replier sends the one reply of a query that could not be answered from memory.
type Replier interface {
	// Reply sends msg, which is valid only during the call. It is called exactly once, from any
	// goroutine, and does not wait for the client. A nil msg means that no reply is sent. The reply
	// may be queued until batch is flushed. batch is never nil.
	Reply(msg []byte, batch *SendBatch)
}

// An AnswerReceiver receives the result of one upstream query.
type AnswerReceiver interface {
	// Answered is called exactly once, from any goroutine, possibly before the call that sent the
	// query returns. answer was parsed, and may be changed; it is valid only during the call. It is
	// nil if and only if err is not. batch is never nil; the caller flushes it afterwards.
	Answered(answer *Message, err error, batch *SendBatch)
}

// A Stream is a Replier that can send several messages for one query, as a zone transfer needs (RFC
// 5936). The Replier of a query that came over TCP is a Stream.
type Stream interface {
	Replier
	// SendMessage sends msg, which is valid only during the call, before later messages. It blocks
	// while the client reads slowly. It returns false when the client accepts no more. The caller
	// must still call Reply, with the last message or nil.
	SendMessage(msg []byte) bool
}

// A Flusher queues work until the end of a batch.
type Flusher interface {
	// Flush sends what is queued. It may be called from any goroutine, also when nothing is queued.
	Flush()
}

// A SendBatch collects what is sent at the end of a batch, so that one system call serves many
// queries: upstream queries and replies. It belongs to one goroutine. The zero value is ready for
// use.
type SendBatch struct {
	due  []Flusher
	next int // index of the first entry of due that is not flushed yet
}

// Add adds f to those that Flush flushes. The goroutine that queues the first item in f calls
// Add; items that others queue before the flush go with it.
func (s *SendBatch) Add(f Flusher) { s.due = append(s.due, f) }

// Flush ends the batch. It flushes the added Flushers in order, and those added meanwhile. If one
// of them panics, the next Flush continues after it.
func (s *SendBatch) Flush() {
	for s.next < len(s.due) {
		s.next++
		s.due[s.next-1].Flush()
	}
	clear(s.due)
	s.due, s.next = s.due[:0], 0
}
