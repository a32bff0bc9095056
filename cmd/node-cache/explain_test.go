// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// TestQueryExplain queries a server that explains, one that does not, and one that sends control characters.
func TestQueryExplain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		explain bool
		option  []byte // data of the option in the reply; nil: no option
		failure string // text of the extended error in the reply; empty: none
		want    string // the lines between the records and the last
		json    string // the fields between records and server
	}{
		{"an agent here", true, []byte("source=cache state=fresh age=12s left=48s route=."), "", "; explained: source=cache state=fresh age=12s left=48s route=.\n", `"explanation":{"ageSeconds":12,"leftSeconds":48,"route":".","source":"cache","state":"fresh"},`},
		{"another server", true, nil, "", "; not explained: only an agent does that, and only to clients on its own machine\n", ""},
		{"a server that sends control characters", true, []byte("\x1b[2Jhi\n\xff"), "\x1b[2J\x9b", "; extended error 22 (No Reachable Authority) ?[2J?\n; explained: ?[2Jhi??\n", `"extendedErrors":[{"code":22,"name":"No Reachable Authority","text":"?[2J?"}],`},
		{"an agent with a failure", true, []byte("source=failure took=1.50ms kept=no"), "", "; explained: source=failure took=1.50ms kept=no\n", `"explanation":{"kept":false,"source":"failure","tookSeconds":0.0015},`},
		{"not asked", false, []byte("source=cache"), "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
			must(t, err)
			server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
				var asked bool
				for _, o := range q.IsEdns0().Option {
					local, ok := o.(*dns.EDNS0_LOCAL)
					asked = asked || ok && local.Code == wire.OptionExplain && len(local.Data) == 0
				}
				if asked != tt.explain {
					t.Errorf("asked to explain: %t, want %t", asked, tt.explain)
				}
				r := new(dns.Msg).SetReply(q).SetEdns0(1232, false)
				if asked && tt.option != nil {
					r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionExplain, Data: tt.option}}
				}
				if tt.failure != "" {
					r.IsEdns0().Option = append(r.IsEdns0().Option, &dns.EDNS0_EDE{InfoCode: 22, ExtraText: tt.failure})
				}
				_ = w.WriteMsg(r)
			})}
			go func() { _ = server.ActivateAndServe() }()
			t.Cleanup(func() { _ = conn.Close() })
			args := []string{"query", "--server", conn.LocalAddr().String(), "www.test"}
			if tt.explain {
				args = append(args, "--explain")
			}
			got := command(args...)
			lines, _, _ := strings.Cut(got.Stdout, "; NOERROR")
			if diff := cmp.Diff(tt.want, lines); diff != "" || got.Code != exitNothing {
				t.Errorf("code %d (-want +got):\n%s", got.Code, diff)
			}
			var asJSON bytes.Buffer
			must(t, json.Compact(&asJSON, []byte(command(append(args, "-o", "json")...).Stdout)))
			fields, _, _ := strings.Cut(strings.TrimPrefix(asJSON.String(), `{"rcode":"NOERROR","records":[],`), `"server":`)
			same(t, "as JSON", tt.json, fields)
		})
	}
}

// FuzzParseExplanation holds the members to those that an expression finds.
func FuzzParseExplanation(f *testing.F) {
	f.Add("source=cache state=fresh age=12s left=-48s took=1.20ms kept=no kernel=yes route=. rule=/a\\032b:1")
	f.Add("=x a= age=soon age=1s=2 source=")
	f.Fuzz(func(t *testing.T, text string) {
		got := parseExplanation(text)
		found := map[string]bool{}
		for _, m := range regexp.MustCompile(`([^\pZ\s\x0b\x{85}=]+)=([^\pZ\s\x0b\x{85}]*)`).FindAllStringSubmatch(" "+text, -1) {
			d, err := time.ParseDuration(m[2])
			name := m[1]
			if err == nil && (name == "age" || name == "left" || name == "took") {
				name += "Seconds"
				if got[name] == nil {
					t.Errorf("%q: no %s for %s in %v", text, name, d, got)
				}
			}
			found[name] = true
		}
		for name := range got {
			if !found[name] {
				t.Errorf("%q: member %q in %v", text, name, got)
			}
		}
	})
}
