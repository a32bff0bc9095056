// SPDX-License-Identifier: Apache-2.0

package tsig_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/tsig"
)

const secret = "c2VjcmV0IG9mIHRlc3Rz"

func statement(name, algorithm string) string {
	return fmt.Sprintf("key %q {\n\talgorithm %s;\n\tsecret \"%s\";\n};\n", name, algorithm, secret)
}

func keysOf(tb testing.TB, text string) (*tsig.Keys, string, *strings.Builder) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "keys")
	assert.NoError(tb, os.WriteFile(path, []byte(text), 0o600))
	var log strings.Builder
	k, err := tsig.New(path, slog.New(slog.NewTextHandler(&log, nil)))
	assert.NoError(tb, err)
	return k, path, &log
}

func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{name: "as tsig-keygen writes it", text: statement("tsig-key", "hmac-sha256"), want: "tsig-key. hmac-sha256."},
		{name: "two on one line, without quotes", text: "# comment\nkey A.example { algorithm HMAC-SHA512; secret " + secret + "; }; key b{algorithm hmac-sha1;secret \"" + secret + "\";};\n// end\n", want: "a.example. hmac-sha512. b. hmac-sha1."},
		{name: "empty", want: "no key in it"},
		{name: "other statements", text: statement("k", "hmac-sha256") + "server 192.0.2.1 { keys { k; }; };", want: "no key statement after key 1"},
		{name: "MD5", text: statement("k", "hmac-md5"), want: "key k.: the algorithm hmac-md5. is not supported"},
		{name: "not base64", text: `key k { algorithm hmac-sha256; secret "?"; };`, want: "key k.: the secret is not base64"},
		{name: "one name twice", text: statement("k", "hmac-sha256") + statement("K.", "hmac-sha1"), want: "key k.: there are two"},
		{name: "a name that is none", text: statement("a..b", "hmac-sha256"), want: "key 1: its name is no domain name"},
		{name: "cut", text: statement("k", "hmac-sha256")[:40], want: "no key in it"},
		{name: "too large", text: strings.Repeat("#\n", 40<<10), want: "larger than 64 KiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "keys")
			assert.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
			keys, err := tsig.Read(path)
			var got []string
			for _, k := range keys {
				got = append(got, k.Name, k.Algorithm)
				assert.Equal(t, "secret", secret, base64.StdEncoding.EncodeToString(k.Secret))
			}
			if err != nil {
				got = []string{err.Error()}
				if strings.Contains(err.Error(), secret) {
					t.Error("the error contains the secret")
				}
			}
			if !strings.HasSuffix(strings.Join(got, " "), tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// signed returns a query signed by miekg/dns, the offset of its TSIG record, and its MAC.
func signed(tb testing.TB, key, algorithm, with string, at int64) (msg []byte, offset int, mac string) {
	tb.Helper()
	m := new(dns.Msg).SetAxfr("cluster.local.")
	plain, err := m.Pack()
	assert.NoError(tb, err)
	msg, mac, err = dns.TsigGenerate(m.SetTsig(key, algorithm, 300, at), with, "", false)
	assert.NoError(tb, err)
	return msg, len(plain), mac
}

// TestReply has miekg/dns verify the messages of a reply.
func TestReply(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{dns.HmacSHA1, dns.HmacSHA224, dns.HmacSHA256, dns.HmacSHA384, dns.HmacSHA512} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			keys, _, _ := keysOf(t, statement("other", "hmac-sha1")+statement("key.example", algorithm))
			now := time.Now()
			msg, at, mac := signed(t, "KEY.example.", algorithm, secret, now.Unix())
			s, err := keys.Verify(msg, at, now)
			assert.NoError(t, err)
			assert.Equal(t, "failed", uint16(0), s.Failed)
			for i := range 3 {
				reply, err := new(dns.Msg).SetReply(new(dns.Msg).SetAxfr("cluster.local.")).SetEdns0(1232, false).Pack()
				assert.NoError(t, err)
				reply = s.Sign(append([]byte("before"), reply...), 6, now)[6:]
				if n := s.Room(); n < len(reply) && len(reply)-n > 60 {
					t.Errorf("%d bytes were reserved for a message of %d", n, len(reply))
				}
				if err := dns.TsigVerify(slices.Clone(reply), secret, mac, i > 0); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				var m dns.Msg
				assert.NoError(t, m.Unpack(reply))
				mac = m.IsTsig().MAC
			}
		})
	}
}

// TestVerify refuses what RFC 8945 section 5.2 refuses.
func TestVerify(t *testing.T) {
	t.Parallel()
	keys, _, _ := keysOf(t, statement("k", "hmac-sha256"))
	now := time.Unix(1_800_000_000, 0)
	valid, at, _ := signed(t, "k.", dns.HmacSHA256, secret, now.Unix())
	resigned := func(change func(*dns.TSIG)) []byte {
		var m dns.Msg
		assert.NoError(t, m.Unpack(valid))
		change(m.IsTsig())
		msg, err := m.Pack()
		assert.NoError(t, err)
		return msg
	}
	otherKey, _, _ := signed(t, "other.", dns.HmacSHA256, secret, now.Unix())
	otherAlgorithm, _, _ := signed(t, "k.", dns.HmacSHA512, secret, now.Unix())
	otherSecret, _, _ := signed(t, "k.", dns.HmacSHA256, "b3RoZXI=", now.Unix())
	early, _, _ := signed(t, "k.", dns.HmacSHA256, secret, now.Unix()-301)
	late, _, _ := signed(t, "k.", dns.HmacSHA256, secret, now.Unix()+301)
	edge, _, _ := signed(t, "k.", dns.HmacSHA256, secret, now.Unix()-300)
	changed := append([]byte(nil), valid...)
	changed[13] ^= 0x20
	cut := func(bytes int) []byte {
		return resigned(func(s *dns.TSIG) { s.MAC, s.MACSize = s.MAC[:2*bytes], uint16(bytes) })
	}
	for _, tt := range []struct {
		name   string
		msg    []byte
		want   string
		signed bool // the reply is
	}{
		{name: "valid", msg: valid, want: "NOERROR", signed: true},
		{name: "at the edge of the time", msg: edge, want: "NOERROR", signed: true},
		{name: "unknown key", msg: otherKey, want: "BADKEY"},
		{name: "another algorithm", msg: otherAlgorithm, want: "BADKEY"},
		{name: "another secret", msg: otherSecret, want: "BADSIG"},
		{name: "a changed message", msg: changed, want: "BADSIG"},
		{name: "too old", msg: early, want: "BADTIME", signed: true},
		{name: "from the future", msg: late, want: "BADTIME", signed: true},
		{name: "another time", msg: resigned(func(s *dns.TSIG) { s.TimeSigned++ }), want: "BADSIG"},
		{name: "truncated MAC", msg: cut(16), want: "BADTRUNC", signed: true},
		{name: "MAC too short", msg: cut(15), want: "FORMERR"},
		{name: "no MAC", msg: cut(0), want: "FORMERR"},
		{name: "MAC too long", msg: resigned(func(s *dns.TSIG) { s.MAC, s.MACSize = s.MAC+"00", 33 }), want: "FORMERR"},
		{name: "bytes after it", msg: append(append([]byte(nil), valid...), 0), want: "FORMERR"},
		{name: "cut", msg: valid[:len(valid)-1], want: "FORMERR"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := keys.Verify(tt.msg, at, now)
			if err != nil {
				if !errors.Is(err, tsig.ErrFormat) || tt.want != "FORMERR" {
					t.Errorf("got %v, want %s", err, tt.want)
				}
				return
			}
			assert.Equal(t, "error", tt.want, dns.RcodeToString[int(s.Failed)])
			reply, err := new(dns.Msg).SetRcode(new(dns.Msg).SetAxfr("cluster.local."), dns.RcodeNotAuth).Pack()
			assert.NoError(t, err)
			var m dns.Msg
			assert.NoError(t, m.Unpack(s.Sign(reply, 0, now)))
			r := m.IsTsig()
			assert.Equal(t, "error of the reply", s.Failed, r.Error)
			assert.Equal(t, "the reply is signed", tt.signed, r.MACSize > 0)
			if tt.want == "BADTIME" {
				assert.Equal(t, "time of the server", fmt.Sprintf("%012x", now.Unix()), r.OtherData)
			}
		})
	}
}

// TestKeysFollowFile replaces the file. Bad content changes nothing.
func TestKeysFollowFile(t *testing.T) {
	t.Parallel()
	keys, path, log := keysOf(t, statement("old", "hmac-sha256"))
	for _, tt := range []struct{ text, want, log string }{
		{text: "key {", want: "old.", log: "keys unreadable"},
		{text: statement("new", "hmac-sha256"), want: "new.", log: "keys read"},
	} {
		log.Reset()
		assert.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
		keys.Reload()
		keys.Reload()
		assert.Equal(t, "key", tt.want, keys.All()[0].Name)
		assert.Equal(t, "lines of the log", 1, strings.Count(log.String(), tt.log))
	}
	assert.NoError(t, os.Remove(path))
	keys.Reload()
	assert.Equal(t, "key without a file", "new.", keys.All()[0].Name)
}

// TestLogRefused bounds the lines that a client can cause.
func TestLogRefused(t *testing.T) {
	t.Parallel()
	keys, _, log := keysOf(t, statement("k", "hmac-sha256"))
	for range 1000 {
		keys.LogRefused(netip.MustParseAddr("192.0.2.1"), "no key")
	}
	if n := strings.Count(log.String(), "\n"); n > 6 {
		t.Errorf("%d lines", n)
	}
}

// FuzzVerify has no query pass that miekg/dns refuses.
func FuzzVerify(f *testing.F) {
	keys, _, _ := keysOf(f, statement("k", "hmac-sha256"))
	now := time.Now()
	valid, at, _ := signed(f, "k.", dns.HmacSHA256, secret, now.Unix())
	f.Add(valid, at)
	for _, off := range []int{6, 10} { // the class and the TTL, which the signature does not cover
		other := bytes.Clone(valid)
		other[at+off]++
		f.Add(other, at)
	}
	f.Fuzz(func(t *testing.T, msg []byte, at int) {
		if len(msg) < 12 || at < 12 || at > len(msg) || binary.BigEndian.Uint16(msg[10:]) == 0 {
			t.Skip("pkg/wire passes no such query")
		}
		s, err := keys.Verify(msg, at, now)
		if err == nil {
			s.Sign(make([]byte, 12), 0, now)
		}
		if err == nil && s.Failed == 0 && dns.TsigVerify(bytes.Clone(msg), secret, "", false) != nil {
			t.Errorf("%x passes", msg)
		}
	})
}
