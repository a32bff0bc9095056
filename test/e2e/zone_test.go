// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
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
