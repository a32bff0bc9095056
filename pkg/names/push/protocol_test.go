// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

func keepalive(kind dso.Kind, id uint16) []byte {
	return dso.AppendKeepalive(dso.AppendHeader(nil, kind, id, 0), dso.Keepalive{Inactivity: time.Hour, Interval: time.Hour})
}

// What a client may send, and what it gets: RFC 8490 sections 5.1, 5.4, 5.5.2 and 8.2, RFC 8765 sections 6.2 to 6.5. A session is
// established by the Keepalive with ID 1, unless the table says otherwise.
func TestProtocol(t *testing.T) {
	t.Parallel()
	const established = "1 NOERROR 15s 1m0s; "
	header := func(kind dso.Kind, id uint16) []byte { return dso.AppendHeader(nil, kind, id, 0) }
	named := dso.Subscription{Name: []byte("\x03web\x04shop\x03svc\x07cluster\x05local\x00"), Type: wire.TypeANY, Class: wire.ClassIN}
	web, other := "web.shop.svc.cluster.local", "other.shop.svc.cluster.local"
	tests := map[string]struct {
		first bool // nothing was sent before
		send  [][]byte
		want  string
	}{
		"Keepalive request":                         {true, [][]byte{keepalive(dso.Request, 7)}, "7 NOERROR 15s 1m0s"},
		"Keepalive request with padding":            {true, [][]byte{dso.AppendPadding(keepalive(dso.Request, 7), 9)}, "7 NOERROR 15s 1m0s padded"},
		"Keepalive request, half a timeout":         {true, [][]byte{append(header(dso.Request, 7), 0, 1, 0, 4, 0, 0, 0, 0)}, "abort"},
		"Keepalive unidirectional (C-U)":            {false, [][]byte{keepalive(dso.Unidirectional, 0)}, "abort"},
		"Keepalive response (SRP)":                  {false, [][]byte{keepalive(dso.Response, 7)}, "abort"},
		"Retry Delay request (C-P)":                 {false, [][]byte{dso.AppendRetryDelay(header(dso.Request, 7), 0)}, "abort"},
		"Retry Delay unidirectional (C-U)":          {false, [][]byte{dso.AppendRetryDelay(header(dso.Unidirectional, 0), 0)}, "abort"},
		"Padding request (C-P)":                     {false, [][]byte{dso.AppendPadding(header(dso.Request, 7), 0)}, "abort"},
		"Padding unidirectional (C-U)":              {false, [][]byte{dso.AppendPadding(header(dso.Unidirectional, 0), 0)}, "abort"},
		"Padding additional (C-A)":                  {false, [][]byte{dso.AppendPadding(subscribe(t, 7, other, 255), 0)}, "7 NOERROR padded"},
		"unknown additional TLV":                    {false, [][]byte{append(subscribe(t, 7, other, 255), 0xf9, 0, 0, 1, 5)}, "7 NOERROR"},
		"unknown request":                           {true, [][]byte{append(header(dso.Request, 7), 0xf9, 0, 0, 0)}, "7 DSOTYPENI retry 1h0m0s"},
		"unknown unidirectional":                    {false, [][]byte{append(header(dso.Unidirectional, 0), 0xf9, 0, 0, 0)}, "abort"},
		"View request":                              {false, [][]byte{dso.AppendView(header(dso.Request, 7), dso.View{})}, "7 DSOTYPENI retry 1h0m0s"},
		"unidirectional before a session":           {true, [][]byte{dso.AppendUnsubscribe(header(dso.Unidirectional, 0), 7)}, "abort"},
		"no session by a refused request":           {true, [][]byte{subscribe(t, 7, "example.com", 255), dso.AppendUnsubscribe(header(dso.Unidirectional, 0), 7)}, "7 NOTAUTH; abort"},
		"a session by SUBSCRIBE":                    {true, [][]byte{subscribe(t, 7, other, 255), dso.AppendUnsubscribe(header(dso.Unidirectional, 0), 7)}, "7 NOERROR"},
		"request without a TLV":                     {false, [][]byte{header(dso.Request, 7)}, "abort"},
		"request with a question":                   {false, [][]byte{append([]byte{0, 7, 0x30, 0, 0, 1, 0, 0, 0, 0, 0, 0}, "\x00\x00\x01\x00\x01"...)}, "7 FORMERR retry 5m0s"},
		"unidirectional with a question":            {false, [][]byte{append([]byte{0, 0, 0x30, 0, 0, 1, 0, 0, 0, 0, 0, 0}, "\x00\x00\x01\x00\x01"...)}, "abort"},
		"response with ID 0":                        {false, [][]byte{header(dso.Response, 0)}, "abort"},
		"half a TLV":                                {false, [][]byte{subscribe(t, 7, web, 255)[:20]}, "abort"},
		"SUBSCRIBE to a name with records":          {false, [][]byte{subscribe(t, 7, web, 255)}, "7 NOERROR; push +web.shop.svc.cluster.local A 10.0.0.7 +web.shop.svc.cluster.local SRV 0 100 80 web.shop.svc.cluster.local."},
		"SUBSCRIBE in upper case":                   {false, [][]byte{subscribe(t, 7, "OTHER.shop.svc.Cluster.LOCAL", 255)}, "7 NOERROR"},
		"SUBSCRIBE to a name without records":       {false, [][]byte{subscribe(t, 7, "shop.svc.cluster.local", 255)}, "7 NOERROR"},
		"SUBSCRIBE to a name that does not exist":   {false, [][]byte{subscribe(t, 7, other, 255)}, "7 NOERROR"},
		"SUBSCRIBE to a name of another zone":       {false, [][]byte{subscribe(t, 7, "example.com", 255)}, "7 NOTAUTH"},
		"SUBSCRIBE to a name without an owner":      {false, [][]byte{subscribe(t, 7, "svc.cluster.local", 255)}, "7 NOTAUTH"},
		"SUBSCRIBE to a name that is in hosts":      {false, [][]byte{subscribe(t, 7, "hosts.shop.svc.cluster.local", 255)}, "7 NOTAUTH"},
		"SUBSCRIBE to a foreign reverse name":       {false, [][]byte{subscribe(t, 7, "1.2.0.192.in-addr.arpa", 255)}, "7 NOTAUTH"},
		"SUBSCRIBE of class CH":                     {false, [][]byte{dso.AppendSubscribe(header(dso.Request, 7), dso.Subscription{Name: named.Name, Type: 255, Class: 3})}, "7 NOTAUTH"},
		"SUBSCRIBE unidirectional":                  {false, [][]byte{dso.AppendSubscribe(header(dso.Unidirectional, 0), named)}, "abort"},
		"SUBSCRIBE with half a name":                {false, [][]byte{append(header(dso.Request, 7), 0, 0x40, 0, 6, 9, 'a', 0, 255, 0, 1)}, "7 FORMERR retry 5m0s"},
		"SUBSCRIBE with a compressed name":          {false, [][]byte{append(header(dso.Request, 7), 0, 0x40, 0, 6, 0xc0, 12, 0, 255, 0, 1)}, "7 FORMERR retry 5m0s"},
		"SUBSCRIBE with the ID of a subscription":   {false, [][]byte{subscribe(t, 7, other, 255), subscribe(t, 7, "third.shop.svc.cluster.local", 255)}, "7 NOERROR; abort"},
		"SUBSCRIBE with the ID of a former request": {false, [][]byte{subscribe(t, 1, other, 255)}, "1 NOERROR"},
		"duplicate SUBSCRIBE":                       {false, [][]byte{subscribe(t, 7, other, 255), subscribe(t, 8, "Other.shop.svc.cluster.local", 255)}, "7 NOERROR; abort"},
		"SUBSCRIBE to another type of the name":     {false, [][]byte{subscribe(t, 7, other, 1), subscribe(t, 8, other, 28)}, "7 NOERROR; 8 NOERROR"},
		"UNSUBSCRIBE, then SUBSCRIBE again":         {false, [][]byte{subscribe(t, 7, other, 255), dso.AppendUnsubscribe(header(dso.Unidirectional, 0), 7), subscribe(t, 7, other, 255)}, "7 NOERROR; 7 NOERROR"},
		"UNSUBSCRIBE of an unknown ID":              {false, [][]byte{dso.AppendUnsubscribe(header(dso.Unidirectional, 0), 9)}, ""},
		"UNSUBSCRIBE request":                       {false, [][]byte{dso.AppendUnsubscribe(header(dso.Request, 9), 9)}, "abort"},
		"UNSUBSCRIBE of half an ID":                 {false, [][]byte{append(header(dso.Unidirectional, 0), 0, 0x42, 0, 1, 9)}, "abort"},
		"PUSH of a client":                          {false, [][]byte{append(header(dso.Unidirectional, 0), 0, 0x41, 0, 11, 0, 0, 1, 0, 1, 0, 0, 0, 5, 0, 0)}, "abort"},
		"RECONFIRM":                                 {false, [][]byte{append(header(dso.Unidirectional, 0), 0, 0x43, 0, 5, 0, 0, 1, 0, 1)}, ""},
		"RECONFIRM request":                         {false, [][]byte{append(header(dso.Request, 9), 0, 0x43, 0, 5, 0, 0, 1, 0, 1)}, "abort"},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.refused = "hosts.shop.svc.cluster.local"
			h.put("web", "10.0.0.7")
			c, want := h.client("192.0.2.1"), tt.want
			if !tt.first {
				c.session.Handle(keepalive(dso.Request, 1))
				want = established + want
				if tt.want == "" {
					want = want[:len(want)-2]
				}
			}
			for _, msg := range tt.send {
				c.session.Handle(msg)
			}
			if got := c.take(); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// A client that is not permitted has no session.
func TestPermits(t *testing.T) {
	t.Parallel()
	if c := newHarness(t).client("2001:db8::1"); c.session != nil {
		t.Error("a client that is not permitted has a session")
	}
}
