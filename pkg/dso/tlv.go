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
//	age in ms (32 bits), number of kinds (8 bits), newest resourceVersion (64 bits each)
type View struct {
	Age      time.Duration // since all kinds were known to be complete
	Versions []uint64      // newest resourceVersion of each kind, in the server's order; 0: none
}

// View parses a TLV of this type.
func (t TLV) View() (View, error) {
	if t.Type != TypeView || len(t.Data) < 5 || t.Data[4] > MaxKinds || len(t.Data) != 5+8*int(t.Data[4]) {
		return View{}, ErrMalformed
	}
	v := View{Age: millis(t.Data), Versions: make([]uint64, t.Data[4])}
	for i := range v.Versions {
		v.Versions[i] = binary.BigEndian.Uint64(t.Data[5+8*i:])
	}
	return v, nil
}

// AppendView appends a View TLV. It has at most [MaxKinds] kinds.
func AppendView(dst []byte, v View) []byte {
	versions := v.Versions[:min(len(v.Versions), MaxKinds)]
	dst = appendMillis(appendTLV(dst, TypeView, 5+8*len(versions)), v.Age)
	dst = append(dst, byte(len(versions)))
	for _, version := range versions {
		dst = binary.BigEndian.AppendUint64(dst, version)
	}
	return dst
}
