// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
)

// plain lets cmp look into a plan.
func plain() cmp.Option {
	return cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})
}

func plainTarget(text string) config.Target {
	return config.Target{Addr: netip.MustParseAddrPort(text)}
}

func TestKubeDNS(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		data  map[string]string
		want  []config.Route
		notes []convert.Note
	}{
		{name: "nothing"},
		{name: "empty keys", data: map[string]string{"stubDomains": " \n", "upstreamNameservers": "", "federations": ""}},
		{name: "empty lists", data: map[string]string{"stubDomains": `{"a.example": []}`, "upstreamNameservers": "null"}, notes: []convert.Note{
			{File: "stubDomains", What: "a.example", Why: "no server with an address is left, so there is no route for it", Hint: "name at least one server by its address"},
		}},
		{
			name: "both",
			data: map[string]string{
				"stubDomains":         `{"Corp.Example": ["10.1.0.1", "10.1.0.2:5353", "10.1.0.1"], "acme.local": ["10.2.0.1#5353", "2001:db8::1#54"]}`,
				"upstreamNameservers": `["192.0.2.1", "2001:db8::2"]` + "\n",
			},
			want: []config.Route{
				config.DefaultRoute("corp.example.", plainTarget("10.1.0.1:53"), plainTarget("10.1.0.2:5353")),
				config.DefaultRoute("acme.local.", plainTarget("10.2.0.1:5353"), plainTarget("[2001:db8::1]:54")),
				config.DefaultRoute(".", plainTarget("192.0.2.1:53"), plainTarget("[2001:db8::2]:53")),
			},
		},
		{
			name: "names of servers",
			data: map[string]string{"stubDomains": `{"a.example": ["ns.example", "10.1.0.1"], "b.example": ["ns.example:53"]}`},
			want: []config.Route{config.DefaultRoute("a.example.", plainTarget("10.1.0.1:53"))},
			notes: []convert.Note{
				{File: "stubDomains", What: "a.example: ns.example", Why: "a server needs an address, not a name", Hint: "write the address of the server; where it is a Service, its cluster IP"},
				{File: "stubDomains", What: "b.example: ns.example:53", Why: "a server needs an address, not a name", Hint: "write the address of the server; where it is a Service, its cluster IP"},
				{File: "stubDomains", What: "b.example", Why: "no server with an address is left, so there is no route for it", Hint: "name at least one server by its address"},
			},
		},
		{
			name: "other keys", data: map[string]string{"federations": "a=b.example", "stubDomain": "{}"},
			notes: []convert.Note{
				{File: "stubDomain", What: "key", Why: "unknown key"},
				{File: "federations", What: "federations", Why: "the resolver with all names and endpoints of the cluster has them", Hint: "write them into its cluster.federations"},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			routes, notes, err := convert.KubeDNS(tt.data)
			must(t, err)
			same(t, "routes", tt.want, routes, plain())
			same(t, "notes", tt.notes, notes)
		})
	}
}

func TestKubeDNSErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		data map[string]string
		want string
	}{
		{
			name: "no JSON", data: map[string]string{"stubDomains": "{", "upstreamNameservers": "192.0.2.1"},
			want: "reading stubDomains: not a JSON object of lists, like {\"example.com\": [\"192.0.2.1\"]}: unexpected end of JSON input\n" +
				"reading upstreamNameservers: not a JSON list of addresses, like [\"192.0.2.1\"]: invalid character '.' after top-level value",
		},
		{
			name: "bad values", data: map[string]string{
				"stubDomains":         `{"a..b": ["192.0.2.1"], "a.example": ["192.0.2.1:0"], "A.example": ["/etc/resolv.conf"], ".": ["192.0.2.1"]}`,
				"upstreamNameservers": `["192.0.2.1"]`,
			},
			want: "reading stubDomains: A.example: \"/etc/resolv.conf\": not an IP address with or without a port\n" +
				"reading stubDomains: \"a..b\": not a zone: an empty label (write one dot between labels)\n" +
				"reading stubDomains: \"a.example\": the same zone as \"A.example\"\n" +
				"reading upstreamNameservers: the zone \".\" of stubDomains has servers already",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			routes, _, err := convert.KubeDNS(tt.data)
			if err == nil || routes != nil {
				t.Fatalf("KubeDNS: %v, %v, want an error alone", routes, err)
			}
			same(t, "error", tt.want, err.Error())
		})
	}
}
