// SPDX-License-Identifier: Apache-2.0

package dso

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Never is a timeout that does not expire.
const Never = math.MaxUint32 * time.Millisecond

// A Keepalive has the timeouts of a session, in milliseconds on the wire (RFC 8490 section 7.1).
type Keepalive struct {
	Inactivity time.Duration // a client without an operation closes the session after it
	Interval   time.Duration // a client that has sent and received nothing sends a Keepalive after it; at least 10 s
}

// Keepalive parses a TLV of this type.
func (t TLV) Keepalive() (Keepalive, error) {
	if t.Type != TypeKeepalive || len(t.Data) != 8 {
		return Keepalive{}, ErrMalformed
	}
	return Keepalive{millis(t.Data), millis(t.Data[4:])}, nil
}

// AppendKeepalive appends a Keepalive TLV.
func AppendKeepalive(dst []byte, k Keepalive) []byte {
	return appendMillis(appendMillis(appendTLV(dst, TypeKeepalive, 8), k.Inactivity), k.Interval)
}

// RetryDelay parses a TLV of this type.
func (t TLV) RetryDelay() (time.Duration, error) {
	if t.Type != TypeRetryDelay || len(t.Data) != 4 {
		return 0, ErrMalformed
	}
	return millis(t.Data), nil
}

// AppendRetryDelay appends a Retry Delay TLV.
func AppendRetryDelay(dst []byte, d time.Duration) []byte {
	return appendMillis(appendTLV(dst, TypeRetryDelay, 4), d)
}

// AppendPadding appends a Padding TLV of size zero bytes.
func AppendPadding(dst []byte, size int) []byte {
	return append(appendTLV(dst, TypePadding, size), make([]byte, size)...)
}

func millis(data []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(data)) * time.Millisecond
}

func appendMillis(dst []byte, d time.Duration) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(min(max(d, 0), Never)/time.Millisecond))
}

// A Subscription is what a client subscribes to. Name is in wire form, in the client's spelling.
type Subscription struct {
	Name        []byte
	Type, Class uint16
}

// Subscribe parses a TLV of this type.
func (t TLV) Subscribe() (Subscription, error) {
	end := nameEnd(t.Data)
	if t.Type != TypeSubscribe || end < 0 || len(t.Data) != end+4 {
		return Subscription{}, ErrMalformed
	}
	return Subscription{t.Data[:end:end], binary.BigEndian.Uint16(t.Data[end:]), binary.BigEndian.Uint16(t.Data[end+2:])}, nil
}

// AppendSubscribe appends a SUBSCRIBE TLV.
func AppendSubscribe(dst []byte, s Subscription) []byte {
	dst = append(appendTLV(dst, TypeSubscribe, len(s.Name)+4), s.Name...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(dst, s.Type), s.Class)
}

// nameEnd returns the size of the name that data begins with, or -1. It may not be compressed.
func nameEnd(data []byte) int {
	for at := 0; at < min(len(data), wire.MaxName); at += 1 + int(data[at]) {
		if data[at] == 0 {
			return at + 1
		}
		if data[at] > wire.MaxLabel {
			break
		}
	}
	return -1
}

// Unsubscribe parses a TLV of this type. It returns the ID of the SUBSCRIBE.
func (t TLV) Unsubscribe() (uint16, error) {
	if t.Type != TypeUnsubscribe || len(t.Data) != 2 {
		return 0, ErrMalformed
	}
	return binary.BigEndian.Uint16(t.Data), nil
}

// AppendUnsubscribe appends an UNSUBSCRIBE TLV with the ID of the SUBSCRIBE.
func AppendUnsubscribe(dst []byte, id uint16) []byte {
	return binary.BigEndian.AppendUint16(appendTLV(dst, TypeUnsubscribe, 2), id)
}

// MaxKinds bounds the kinds of objects of a [View].
const MaxKinds = 16

// A View says what a server knows of the cluster's objects:
//
//	age in ms (32 bits), number of kinds (8 bits), and for each kind Newest and UpTo (64 bits each)
type View struct {
	Age   time.Duration // since it was last known that no change is missing, of the kind for which that was longest ago
	Kinds []Versions    // in the server's order, the same in each message
}

// Versions are resource versions of the objects of one kind. They are comparable among the servers of one cluster.
//
// A server is not behind another one if its UpTo has reached the other one's Newest. One number would not do. UpTo also counts
// bookmarks, which servers get at different times. And of a list, a server does not learn of the deletions before.
type Versions struct {
	Newest uint64 // of the newest object that was applied; 0: none
	UpTo   uint64 // all changes up to it were applied; 0: not known
}

// View parses a TLV of this type.
func (t TLV) View() (View, error) {
	if t.Type != TypeView || len(t.Data) < 5 || t.Data[4] > MaxKinds || len(t.Data) != 5+16*int(t.Data[4]) {
		return View{}, ErrMalformed
	}
	v := View{Age: millis(t.Data), Kinds: make([]Versions, t.Data[4])}
	for i := range v.Kinds {
		at := t.Data[5+16*i:]
		v.Kinds[i] = Versions{Newest: binary.BigEndian.Uint64(at), UpTo: binary.BigEndian.Uint64(at[8:])}
	}
	return v, nil
}

// AppendView appends a View TLV. It has at most [MaxKinds] kinds.
func AppendView(dst []byte, v View) []byte {
	kinds := v.Kinds[:min(len(v.Kinds), MaxKinds)]
	dst = appendMillis(appendTLV(dst, TypeView, 5+16*len(kinds)), v.Age)
	dst = append(dst, byte(len(kinds)))
	for _, k := range kinds {
		dst = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, k.Newest), k.UpTo)
	}
	return dst
}
