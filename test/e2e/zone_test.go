// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// bigTexts is the number of strings at big.e2e.test, too many for one UDP datagram.
const bigTexts = 40

// mainZone is the zone most tests ask. Names under wild and short always exist; those under short may be kept for
// one second only.
func mainZone() string {
	var big strings.Builder
	for i := range bigTexts {
		fmt.Fprintf(&big, "big TXT \"%03d %s\"\n", i, strings.Repeat("x", 100))
	}
	return `$ORIGIN e2e.test.
$TTL 300
@ SOA ns hostmaster 1 3600 600 86400 300
@ NS ns
ns A 127.0.0.1
host A 192.0.2.10
host AAAA 2001:db8::10
mail MX 10 mx1
mail MX 20 mx2
text TXT "hello" "world"
v4only A 192.0.2.11
c1 CNAME c2
c2 CNAME c3
c3 CNAME host
odd TYPE65280 \# 4 0a000001
*.wild A 192.0.2.99
*.short 1 A 192.0.2.98
web.default.svc A 192.0.2.20
web.default.svc AAAA 2001:db8::20
` + big.String()
}

// outsideZone stands for the names outside of a cluster.
func outsideZone() string {
	return `$ORIGIN outside.test.
$TTL 300
@ SOA ns hostmaster 1 3600 600 86400 300
@ NS ns
ns A 127.0.0.1
www A 198.51.100.1
www AAAA 2001:db8:1::1
`
}

// taggedZone is a zone whose wildcard answers with an address that tells the servers apart.
func taggedZone(address string) string {
	return fmt.Sprintf("$ORIGIN e2e.test.\n$TTL 300\n@ SOA ns hostmaster 1 3600 600 86400 300\n@ NS ns\nns A 127.0.0.1\n*.tag A %s\n", address)
}

// signedZone is a zone of which the records that tests ask for are signed with a fresh key.
func signedZone(t *testing.T) string {
	t.Helper()
	key := &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: "signed.test.", Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 300},
		Flags: dns.ZONE | dns.SEP, Protocol: 3, Algorithm: dns.ECDSAP256SHA256,
	}
	private, err := key.Generate(256)
	if err != nil {
		t.Fatalf("making a zone key: %v", err)
	}
	texts := []string{
		"signed.test. 300 IN SOA ns.signed.test. hostmaster.signed.test. 1 3600 600 86400 300",
		"signed.test. 300 IN NS ns.signed.test.",
		"ns.signed.test. 300 IN A 127.0.0.1",
		"host.signed.test. 300 IN A 192.0.2.30",
		key.String(),
	}
	var zone strings.Builder
	for _, text := range texts {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatalf("reading a record: %v", err)
		}
		signature := &dns.RRSIG{
			Hdr:       dns.RR_Header{Ttl: 300},
			Algorithm: key.Algorithm, SignerName: key.Hdr.Name, KeyTag: key.KeyTag(),
			Inception: uint32(time.Now().Add(-time.Hour).Unix()), Expiration: uint32(time.Now().Add(24 * time.Hour).Unix()),
		}
		if err := signature.Sign(private.(crypto.Signer), []dns.RR{rr}); err != nil {
			t.Fatalf("signing %s: %v", rr, err)
		}
		fmt.Fprintf(&zone, "%s\n%s\n", rr, signature)
	}
	return zone.String()
}
