// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestCookieVectors are the examples of RFC 9018 appendix A.
func TestCookieVectors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, secret, client, addr string
		unix                       int64
		want                       string
	}{
		{"A.1 learning a new server cookie", "e5e973e5a6b2a43f48e7dc849e37bfcf", "2464c4abcf10c957", "198.51.100.100", 1559731985, "2464c4abcf10c957010000005cf79f111f8130c3eee29480"},
		{"A.2 the same client later", "e5e973e5a6b2a43f48e7dc849e37bfcf", "2464c4abcf10c957", "198.51.100.100", 1559734385, "2464c4abcf10c957010000005cf7a871d4a564a1442aca77"},
		{"A.3 another client", "e5e973e5a6b2a43f48e7dc849e37bfcf", "fc93fc62807ddb86", "203.0.113.203", 1559734700, "fc93fc62807ddb86010000005cf7a9acf73a7810aca2381e"},
		{"A.4 IPv6 after a change of secret", "445536bcd2513298075a5d379663c962", "22681ab97d52c298", "2001:db8:220:1:59de:d0f4:8769:82b8", 1559741961, "22681ab97d52c298010000005cf7c609a6bb79d16625507a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			secret, _ := hex.DecodeString(tt.secret)
			client, _ := hex.DecodeString(tt.client)
			var jar cookieSecret
			assert.NoError(t, jar.init(bytes.NewReader(secret)))
			var dst [cookieLen]byte
			if got := hex.EncodeToString(jar.makeCookie(&dst, client, netip.MustParseAddr(tt.addr), time.Unix(tt.unix, 0))); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestCookieProves checks valid, changed and expired cookies.
func TestCookieProves(t *testing.T) {
	t.Parallel()
	var jar, other cookieSecret
	if jar.init(rand.Reader) != nil || other.init(rand.Reader) != nil {
		t.Fatal("no randomness")
	}
	four, six := netip.MustParseAddr("198.51.100.100"), netip.MustParseAddr("2001:db8::1")
	now := time.Unix(1<<32-10, 0) // the clock of 32 bits wraps
	for _, addr := range []netip.Addr{four, six} {
		var room, foreign [cookieLen]byte
		cookie := jar.makeCookie(&room, []byte("8 bytes."), addr, now)
		for _, tt := range []struct {
			name   string
			cookie []byte
			addr   netip.Addr
			after  time.Duration
			want   bool
		}{
			{"as it was given", cookie, addr, 0, true},
			{"an hour later", cookie, addr, time.Hour, true},
			{"more than an hour later", cookie, addr, time.Hour + time.Second, false},
			{"with a clock that was set back", cookie, addr, -5 * time.Minute, true},
			{"from the future", cookie, addr, -5*time.Minute - time.Second, false},
			{"none", nil, addr, 0, false},
			{"the client's part", cookie[:clientCookieLen], addr, 0, false},
			{"a short one", cookie[:cookieLen-1], addr, 0, false},
			{"a long one", append(slices.Clone(cookie), 0), addr, 0, false},
			{"of another address", cookie, addr.Next(), 0, false},
			{"of another secret", other.makeCookie(&foreign, []byte("8 bytes."), addr, now), addr, 0, false},
		} {
			assert.Equal(t, fmt.Sprintf("%s, %s", addr, tt.name), tt.want, jar.isValid(tt.cookie, tt.addr, now.Add(tt.after)))
		}
		for i := range cookie {
			changed := slices.Clone(cookie)
			changed[i] ^= 1
			if jar.isValid(changed, addr, now) {
				t.Errorf("%s: proven with byte %d changed", addr, i)
			}
		}
	}
}
