// SPDX-License-Identifier: Apache-2.0

package dso_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/dso"
)

// slowTLV and slowParse are another reading of RFC 8490 section 5.4: the message is cut piece by piece.
type slowTLV struct {
	typ  uint16
	data []byte
}

func slowParse(msg []byte) (tlvs []slowTLV, ok, sections bool) {
	r := bytes.NewReader(msg)
	var h struct {
		ID, Flags uint16
		Counts    [4]uint16
	}
	if binary.Read(r, binary.BigEndian, &h) != nil || h.Flags>>11&15 != 6 {
		return nil, false, false
	}
	response := h.Flags>>15 == 1
	if response && h.ID == 0 {
		return nil, false, false
	}
	if h.Counts != [4]uint16{} {
		return nil, false, true
	}
	for r.Len() > 0 {
		var head struct{ Type, Length uint16 }
		if binary.Read(r, binary.BigEndian, &head) != nil {
			return nil, false, false
		}
		data := make([]byte, head.Length)
		if n, _ := r.Read(data); n != int(head.Length) {
			return nil, false, false
		}
		tlvs = append(tlvs, slowTLV{head.Type, data})
	}
	return tlvs, response || len(tlvs) > 0, false
}

func FuzzParse(f *testing.F) {
	f.Add(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Request, 1, 0), dso.Keepalive{Interval: time.Minute}))
	f.Add(dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Response, 1, 5), time.Minute))
	f.Add(dso.AppendView(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), dso.Keepalive{}), dso.View{Kinds: []dso.Versions{{Newest: 1, UpTo: 2}}}))
	f.Add(dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, 1, 0), dso.Subscription{Name: []byte("\x01a\x00"), Type: 255, Class: 1}))
	f.Add(dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 1))
	f.Fuzz(func(t *testing.T, msg []byte) {
		m, err := dso.Parse(msg)
		want, ok, sections := slowParse(msg)
		if (err == nil) != ok || errors.Is(err, dso.ErrCounts) != sections {
			t.Fatalf("error %v, want accepted %v, counts %v", err, ok, sections)
		}
		if err != nil {
			return
		}
		got := []slowTLV(nil)
		if p := m.Primary(); len(want) > 0 {
			got = append(got, slowTLV{uint16(p.Type), p.Data})
		}
		m.Additional(func(x dso.TLV) bool {
			got = append(got, slowTLV{uint16(x.Type), x.Data})
			return true
		})
		if !cmp.Equal(got, want, cmp.AllowUnexported(slowTLV{}), sameSlices) {
			t.Fatalf("TLVs %v, want %v", got, want)
		}
		// What is read and written again has the same bytes.
		out := dso.AppendHeader(nil, m.Kind, m.ID, m.Rcode)
		p := m.Primary()
		if v, err := p.Keepalive(); err == nil {
			out = dso.AppendKeepalive(out, v)
		} else if v, err := p.RetryDelay(); err == nil {
			out = dso.AppendRetryDelay(out, v)
		} else if v, err := p.View(); err == nil {
			out = dso.AppendView(out, v)
		} else if v, err := p.Unsubscribe(); err == nil {
			out = dso.AppendUnsubscribe(out, v)
		} else if v, err := p.Subscribe(); err == nil {
			out = dso.AppendSubscribe(out, v)
			if text, end, err := dns.UnpackDomainName(v.Name, 0); err != nil || end != len(v.Name) {
				t.Fatalf("name %q, %q: %v", v.Name, text, err)
			}
		} else {
			return
		}
		if size := len(out) - 12; size > len(msg)-12 || !bytes.Equal(out[12:], msg[12:12+size]) {
			t.Fatalf("written again: %x, want a part of %x", out, msg)
		}
	})
}

// slowName is another reading of RFC 1035 section 4.1.4, label by label. A pointer leads to a byte of the changes that is before the
// labels that it follows.
func slowName(msg []byte, at int) (labels [][]byte, next int, ok bool) {
	for begin := at; at < len(msg); {
		n := int(msg[at])
		switch {
		case n == 0:
			return labels, at + 1, true
		case n >= 0xc0:
			if at+1 >= len(msg) {
				return nil, 0, false
			}
			to := n&0x3f<<8 | int(msg[at+1])
			if to < 16 || to >= begin {
				return nil, 0, false
			}
			rest, _, ok := slowName(msg, to)
			return append(labels, rest...), at + 2, ok
		case n > 63 || at+1+n > len(msg):
			return nil, 0, false
		}
		labels = append(labels, msg[at:at+1+n])
		at += 1 + n
	}
	return nil, 0, false
}

// slowChanges is another reading of RFC 8765 section 6.3.1.
func slowChanges(msg []byte) (list []dso.Change, ok bool) {
	if len(msg) > 16382 || len(msg) < 16 || msg[13] != 0x41 || msg[12] != 0 || binary.BigEndian.Uint16(msg) != 0 || msg[2] >= 0x80 {
		return nil, false
	}
	msg = msg[:16+int(binary.BigEndian.Uint16(msg[14:]))]
	for at := 16; at < len(msg); {
		labels, next, named := slowName(msg, at)
		name := append(bytes.Join(labels, nil), 0)
		if !named || len(name) > 255 || next+10 > len(msg) {
			return list, false
		}
		size := int(binary.BigEndian.Uint16(msg[next+8:]))
		if next+10+size > len(msg) {
			return list, false
		}
		c := dso.Change{
			Name: name, Type: binary.BigEndian.Uint16(msg[next:]), Class: binary.BigEndian.Uint16(msg[next+2:]),
			TTL: binary.BigEndian.Uint32(msg[next+4:]), Data: msg[next+10 : next+10+size],
		}
		at = next + 10 + size
		switch wild := c.Type == 255 || c.Class == 255; {
		case c.TTL == 0xfffffffe && size > 0, (c.TTL < 1<<31 || c.TTL == 0xffffffff) && wild:
			return list, false
		}
		list = append(list, c)
	}
	return list, len(list) > 0
}

func FuzzChanges(f *testing.F) {
	var p dso.Push
	p.Begin(nil)
	p.RemoveName([]byte("\x01a\x01b\x00"))
	p.Add(dso.Change{Name: []byte("\x01a\x01b\x00"), Type: 1, Class: 1, TTL: 5, Data: []byte{1, 2, 3, 4}})
	f.Add(p.End())
	f.Add([]byte("\x00\x00\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x41\x00\x0c\xc0\x10\x00\x01\x00\x01\x00\x00\x00\x05\x00\x00"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		m, err := dso.Parse(msg)
		if err != nil {
			return
		}
		var got []dso.Change
		err = m.Changes(func(c dso.Change) bool {
			c.Name = bytes.Clone(c.Name)
			got = append(got, c)
			return true
		})
		want, ok := slowChanges(msg)
		if (err == nil) != ok || !cmp.Equal(got, want, sameSlices) {
			t.Fatalf("changes %v, error %v, want %v, %v", got, err, want, ok)
		}
		if err != nil {
			return
		}
		var p dso.Push
		p.Begin(nil)
		for _, c := range got {
			if !p.Add(c) {
				return // it was compressed better
			}
		}
		again, err := dso.Parse(p.End())
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		err = again.Changes(func(c dso.Change) bool {
			if !cmp.Equal(c, got[i], sameSlices) {
				t.Errorf("written again: %v, want %v", c, got[i])
			}
			i++
			return true
		})
		if err != nil || i != len(got) {
			t.Errorf("written again: %d changes, error %v, want %d", i, err, len(got))
		}
	})
}
