// SPDX-License-Identifier: Apache-2.0

package dso_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

const service = "\x03web\x04shop\x03svc\x07cluster\x05local\x00"

func TestParse(t *testing.T) {
	t.Parallel()
	keepalive := "\x00\x01\x00\x08\x00\x00\x3a\x98\x00\x00\x75\x30"
	tests := map[string]struct {
		msg     string
		kind    dso.Kind
		primary dso.Type
		err     error
	}{
		"request":                      {"\x12\x34\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive, dso.Request, dso.TypeKeepalive, nil},
		"Z bits are ignored":           {"\x12\x34\x37\xf0\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive, dso.Request, dso.TypeKeepalive, nil},
		"response":                     {"\x12\x34\xb0\x00\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive, dso.Response, dso.TypeKeepalive, nil},
		"response without a TLV":       {"\x12\x34\xb0\x05\x00\x00\x00\x00\x00\x00\x00\x00", dso.Response, 0, nil},
		"unidirectional":               {"\x00\x00\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive, dso.Unidirectional, dso.TypeKeepalive, nil},
		"response with ID 0":           {"\x00\x00\xb0\x00\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive, 0, 0, dso.ErrMalformed},
		"request without a TLV":        {"\x12\x34\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00", 0, 0, dso.ErrMalformed},
		"unidirectional without a TLV": {"\x00\x00\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00", 0, 0, dso.ErrMalformed},
		"a question":                   {"\x12\x34\x30\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01", dso.Request, 0, dso.ErrCounts},
		"an additional record":         {"\x12\x34\x30\x00\x00\x00\x00\x00\x00\x00\x00\x01" + keepalive, dso.Request, 0, dso.ErrCounts},
		"half a TLV header":            {"\x12\x34\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00", 0, 0, dso.ErrMalformed},
		"half a TLV":                   {"\x12\x34\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive[:11], 0, 0, dso.ErrMalformed},
		"bytes after the last TLV":     {"\x12\x34\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive + "\x00", 0, 0, dso.ErrMalformed},
		"another opcode":               {"\x12\x34\x28\x00\x00\x00\x00\x00\x00\x00\x00\x00" + keepalive, 0, 0, dso.ErrMalformed},
		"half a header":                {"\x12\x34\x30\x00\x00\x00", 0, 0, dso.ErrMalformed},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			m, err := dso.Parse([]byte(tt.msg))
			if !errors.Is(err, tt.err) || m.Kind != tt.kind || m.Primary().Type != tt.primary {
				t.Errorf("kind %d, primary %d, error %v, want %d, %d, %v", m.Kind, m.Primary().Type, err, tt.kind, tt.primary, tt.err)
			}
		})
	}
}

// Each TLV is written and read, and its data is refused when a byte is missing or too much.
func TestTLVs(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		bytes []byte
		read  func(dso.TLV) (any, error)
		want  any
	}{
		"Keepalive": {
			dso.AppendKeepalive(nil, dso.Keepalive{Inactivity: 15 * time.Second, Interval: dso.Never}),
			func(t dso.TLV) (any, error) { return t.Keepalive() },
			dso.Keepalive{Inactivity: 15 * time.Second, Interval: dso.Never},
		},
		"Retry Delay": {
			dso.AppendRetryDelay(nil, time.Hour),
			func(t dso.TLV) (any, error) { return t.RetryDelay() }, time.Hour,
		},
		"Retry Delay of more than can be said": {
			dso.AppendRetryDelay(nil, 1000*time.Hour*24),
			func(t dso.TLV) (any, error) { return t.RetryDelay() }, dso.Never,
		},
		"SUBSCRIBE": {
			dso.AppendSubscribe(nil, dso.Subscription{Name: []byte(service), Type: 255, Class: 1}),
			func(t dso.TLV) (any, error) { return t.Subscribe() },
			dso.Subscription{Name: []byte(service), Type: 255, Class: 1},
		},
		"UNSUBSCRIBE": {
			dso.AppendUnsubscribe(nil, 0xfffe),
			func(t dso.TLV) (any, error) { return t.Unsubscribe() }, uint16(0xfffe),
		},
		"View": {
			dso.AppendView(nil, dso.View{Age: 3 * time.Second, Kinds: []dso.Versions{{Newest: 1 << 60}, {UpTo: 7}}}),
			func(t dso.TLV) (any, error) { return t.View() },
			dso.View{Age: 3 * time.Second, Kinds: []dso.Versions{{Newest: 1 << 60}, {UpTo: 7}}},
		},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			for _, change := range []int{0, -1, 1} {
				data := append(slices.Clone(tt.bytes[4:]), 0)[:len(tt.bytes)-4+change]
				got, err := tt.read(dso.TLV{Type: dso.Type(tt.bytes[0])<<8 | dso.Type(tt.bytes[1]), Data: data})
				switch {
				case change != 0 && !errors.Is(err, dso.ErrMalformed):
					t.Errorf("%+d byte: %v, want %v", change, err, dso.ErrMalformed)
				case change == 0 && (err != nil || !cmp.Equal(got, tt.want)):
					t.Errorf("got %v, error %v, want %v", got, err, tt.want)
				}
			}
			if _, err := tt.read(dso.TLV{Type: 0x7777, Data: tt.bytes[4:]}); err == nil {
				t.Error("a TLV of another type was accepted")
			}
		})
	}
}

func TestAdditionalTLVs(t *testing.T) {
	t.Parallel()
	msg := dso.AppendHeader(nil, dso.Unidirectional, 0, 0)
	msg = dso.AppendKeepalive(msg, dso.Keepalive{})
	msg = dso.AppendPadding(msg, 3)
	msg = dso.AppendView(msg, dso.View{Kinds: []dso.Versions{{UpTo: 5}}})
	m, err := dso.Parse(msg)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := m.Find(dso.TypeKeepalive); ok {
		t.Error("the primary TLV was found among the additional ones")
	}
	found, ok := m.Find(dso.TypeView)
	if v, err := found.View(); !ok || err != nil || v.Kinds[0].UpTo != 5 {
		t.Errorf("found %v, view %v, error %v", ok, v, err)
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	const at = "\x00\x00\x30\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x41\x00"
	tests := map[string]struct {
		changes string
		want    string
		err     error
	}{
		"an added record":                 {"\x01a\x00\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x01\x02\x03\x04", "a. 1 1 5 01020304", nil},
		"a compressed owner":              {"\x01a\x00\x00\xff\x00\x01\xff\xff\xff\xfe\x00\x00\xc0\x10\x00\x10\x00\x01\x00\x00\x00\x05\x00\x00", "a. 255 1 4294967294 |a. 16 1 5 ", nil},
		"a removed record":                {"\x00\x00\x01\x00\x01\xff\xff\xff\xff\x00\x00", ". 1 1 4294967295 ", nil},
		"an unknown TTL is for others":    {"\x00\x00\xff\x00\xff\x80\x00\x00\x00\x00\x00", ". 255 255 2147483648 ", nil},
		"collective with data":            {"\x00\x00\xff\x00\x01\xff\xff\xff\xfe\x00\x01\x00", "", dso.ErrMalformed},
		"an added record of any type":     {"\x00\x00\xff\x00\x01\x00\x00\x00\x05\x00\x00", "", dso.ErrMalformed},
		"a removed record of any class":   {"\x00\x00\x01\x00\xff\xff\xff\xff\xff\x00\x00", "", dso.ErrMalformed},
		"no change":                       {"", "", dso.ErrMalformed},
		"half a change":                   {"\x00\x00\x01\x00\x01\x00\x00\x00\x05\x00", "", dso.ErrMalformed},
		"half of the data":                {"\x00\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x01", "", dso.ErrMalformed},
		"half a name":                     {"\x05abc", "", dso.ErrMalformed},
		"a name that points to itself":    {"\xc0\x10\x00\x01\x00\x01\x00\x00\x00\x05\x00\x00", "", dso.ErrMalformed},
		"a name that points ahead":        {"\xc0\x13\x00\x01\x00\x01\x00\x00\x00\x05\x00\x00", "", dso.ErrMalformed},
		"a name that points to a header":  {"\xc0\x04\x00\x01\x00\x01\x00\x00\x00\x05\x00\x00", "", dso.ErrMalformed},
		"a good change, then half of one": {"\x00\x00\x01\x00\x01\xff\xff\xff\xff\x00\x00\x05", ". 1 1 4294967295 ", dso.ErrMalformed},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			m, err := dso.Parse([]byte(at + string(rune(len(tt.changes))) + tt.changes))
			if err != nil {
				t.Fatal(err)
			}
			got, err := changes(&m)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, error %v, want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
	large, err := dso.Parse(append([]byte(at[:len(at)-1]+"\x3f\xf0\x00\x00\x01\x00\x01\x00\x00\x00\x05\x3f\xe5"), make([]byte, 0x3fe5)...))
	if err == nil {
		err = large.Changes(func(dso.Change) bool { return true })
	}
	if !errors.Is(err, dso.ErrMalformed) {
		t.Errorf("a PUSH of more than %d bytes: %v, want %v", dso.MaxPush, err, dso.ErrMalformed)
	}
}

func changes(m *dso.Message) (string, error) {
	var all []string
	err := m.Changes(func(c dso.Change) bool {
		all = append(all, fmt.Sprintf("%s %d %d %d %x", wire.AppendText(nil, c.Name), c.Type, c.Class, c.TTL, c.Data))
		return true
	})
	return strings.Join(all, "|"), err
}

// A PUSH is filled to its last byte, and what does not fit leaves it as it was.
func TestPushIsFull(t *testing.T) {
	t.Parallel()
	var p dso.Push
	p.Begin([]byte("before"))
	if got := p.End(); string(got) != "before" {
		t.Errorf("without a change: %q", got)
	}
	owner := []byte(service)
	p.Begin([]byte("before"))
	if !p.RemoveName(owner) {
		t.Fatal("an empty message has no room for a removal")
	}
	mark := p.Len()
	record := dso.Change{Name: owner, Type: wire.TypeA, Class: wire.ClassIN, TTL: 5, Data: []byte{10, 0, 0, 1}}
	count := 0
	for p.Add(record) {
		count++
	}
	if free := dso.MaxPush - p.Len(); free < 0 || free >= 16 { // a pointer, 10 bytes, and the address
		t.Errorf("%d bytes are left", free)
	}
	p.Cut(p.Len() - 16) // the last address
	record.Data = make([]byte, dso.MaxPush-p.Len()-12)
	if !p.Add(record) || p.Len() != dso.MaxPush {
		t.Errorf("the message has %d bytes, want %d", p.Len(), dso.MaxPush)
	}
	m, err := dso.Parse(p.End()[len("before"):])
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	if err := m.Changes(func(c dso.Change) bool { read++; return bytes.Equal(c.Name, owner) }); err != nil || read != count+1 {
		t.Errorf("%d changes were read, error %v, want %d", read, err, count+1)
	}
	p.Cut(mark)
	m, err = dso.Parse(p.End()[len("before"):])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := changes(&m); err != nil || got != "web.shop.svc.cluster.local. 255 1 4294967294 " {
		t.Errorf("after Cut: %q, %v", got, err)
	}
}

var sameSlices = cmpopts.EquateEmpty()
