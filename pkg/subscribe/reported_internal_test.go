// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestIsReported says which answers to the question for web.shop.svc.cluster.local may be kept.
func TestIsReported(t *testing.T) {
	t.Parallel()
	const web, other = "web.shop.svc.cluster.local. 5 IN ", "other.shop.svc.cluster.local. 5 IN "
	tests := []struct {
		name       string
		qtype      uint16
		rcode      int
		answer     []string
		additional []string
		want       bool
	}{
		{name: "an address", answer: []string{web + "A 10.0.0.7"}, want: true},
		{name: "a set", answer: []string{web + "A 10.0.0.7", web + "A 10.0.0.8"}, want: true},
		{name: "no name", rcode: dns.RcodeNameError, want: true},
		{name: "no data", want: true},
		{
			name: "SRV with addresses", qtype: dns.TypeSRV, answer: []string{web + "SRV 0 0 80 a.web.shop.svc.cluster.local."},
			additional: []string{"a.web.shop.svc.cluster.local. 5 IN A 10.0.0.7"}, want: true,
		},
		{
			name: "SRV with an address elsewhere", qtype: dns.TypeSRV, answer: []string{web + "SRV 0 0 80 www.example.com."},
			additional: []string{"www.example.com. 5 IN A 192.0.2.7"},
		},
		{name: "an alias within the zone", answer: []string{web + "CNAME other.shop.svc.cluster.local.", other + "A 10.0.0.7"}, want: true},
		{name: "an alias that leaves the zone", answer: []string{web + "CNAME www.example.com.", "www.example.com. 5 IN A 192.0.2.7"}},
		{name: "an alias whose target is not known", answer: []string{web + "CNAME www.example.com."}},
		{name: "an alias of a denied name", rcode: dns.RcodeNameError, answer: []string{web + "CNAME other.shop.svc.cluster.local."}},
		{name: "an alias that is asked for", qtype: dns.TypeCNAME, answer: []string{web + "CNAME www.example.com."}, want: true},
		{name: "a name above the namespaces", answer: []string{web + "CNAME svc.cluster.local.", "svc.cluster.local. 5 IN A 10.0.0.7"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			msg := new(dns.Msg)
			msg.SetQuestion("web.shop.svc.cluster.local.", max(dns.TypeA, tt.qtype))
			msg.Response, msg.Rcode, msg.Compress = true, tt.rcode, true
			parse := func(texts []string) (list []dns.RR) {
				for _, text := range texts {
					rr, err := dns.NewRR(text)
					assert.NoError(t, err)
					list = append(list, rr)
				}
				return list
			}
			msg.Answer, msg.Extra = parse(tt.answer), parse(tt.additional)
			packed, err := msg.Pack()
			assert.NoError(t, err)
			var m wire.Message
			assert.NoError(t, m.Parse(packed))
			w := &question{client: New(Config{Owner: modelOwner})}
			assert.Same(t, "may be kept", tt.want, w.isReported(&m))
		})
	}
}
