// SPDX-License-Identifier: Apache-2.0

package tsig

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // secondary servers may have no better algorithm
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/panics"
)

// A Key is a secret shared with secondary servers.
type Key struct {
	Name      string // canonical, with a dot at the end
	Algorithm string // canonical name, such as dns.HmacSHA256
	Secret    []byte
}

// hashOf returns the hash function of an algorithm, or nil.
func hashOf(algorithm string) func() hash.Hash {
	switch algorithm {
	case dns.HmacSHA1:
		return sha1.New
	case dns.HmacSHA224:
		return sha256.New224
	case dns.HmacSHA256:
		return sha256.New
	case dns.HmacSHA384:
		return sha512.New384
	case dns.HmacSHA512:
		return sha512.New
	}
	return nil
}

// maxFile bounds the bytes of a file of keys.
const maxFile = 64 << 10

// Read reads the keys of a file in the format of BIND, which tsig-keygen(8) writes:
//
//	key "NAME" { algorithm hmac-sha256; secret "BASE64"; };
//
// A file without a key is an error. Lines that begin with # or // are comments. No error contains a secret.
func Read(path string) ([]Key, error) {
	text, err := filewatch.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	return parse(text)
}

func parse(text []byte) (keys []Key, err error) {
	statement := regexp.MustCompile(`^\s*key\s+"?([^\s"{]+)"?\s*\{\s*algorithm\s+"?([^\s";]+)"?\s*;\s*secret\s+"?([^\s";]+)"?\s*;\s*\}\s*;`)
	rest := regexp.MustCompile(`(?m)^\s*(#|//).*$`).ReplaceAll(text, nil)
	for {
		m := statement.FindSubmatch(rest)
		if m == nil {
			break
		}
		rest = rest[len(m[0]):]
		k := Key{Name: dns.CanonicalName(string(m[1])), Algorithm: dns.CanonicalName(string(m[2]))}
		if _, ok := dns.IsDomainName(k.Name); !ok {
			return nil, fmt.Errorf("key %d: its name is no domain name", len(keys)+1)
		}
		if hashOf(k.Algorithm) == nil {
			return nil, fmt.Errorf("key %s: the algorithm %s is not supported", k.Name, k.Algorithm)
		}
		if k.Secret, err = base64.StdEncoding.DecodeString(string(m[3])); err != nil {
			return nil, fmt.Errorf("key %s: the secret is not base64", k.Name)
		}
		if slices.ContainsFunc(keys, func(o Key) bool { return o.Name == k.Name }) {
			return nil, fmt.Errorf("key %s: there are two", k.Name)
		}
		keys = append(keys, k)
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("no key in it")
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, fmt.Errorf("no key statement after key %d", len(keys))
	}
	return keys, nil
}

// Keys are the keys of a file. Run keeps them up to date.
type Keys struct {
	path    string
	log     *slog.Logger
	current atomic.Pointer[[]Key]
	lastErr string         // error of the last check of the file; empty: none; only Run uses it
	warned  rate.Sometimes // limits LogRefused
}

// New reads the keys of a file.
func New(path string, log *slog.Logger) (*Keys, error) {
	list, err := Read(path)
	if err != nil {
		return nil, err
	}
	k := &Keys{path: path, log: log, warned: rate.Sometimes{First: 5, Interval: 10 * time.Second}}
	k.current.Store(&list)
	return k, nil
}

// All returns the keys in the order of the file.
func (k *Keys) All() []Key { return *k.current.Load() }

// Run reads the file again when it changes, until ctx ends, and returns nil then. While the file has an error, the previous keys stay.
func (k *Keys) Run(ctx context.Context) error {
	guard := panics.Guard{Where: "keys", Log: k.log}
	filewatch.Watch(ctx, filewatch.Config{
		Paths: []string{k.path}, Check: k.reload, Log: k.log,
		OnPanic: func(panicked any) { _ = guard.Recovered(ctx, panicked) },
	})
	return nil
}

func (k *Keys) reload(bool) time.Duration {
	list, err := Read(k.path)
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed := text != k.lastErr
	k.lastErr = text
	switch {
	case err != nil:
		if changed {
			k.log.Warn("keys unreadable, the previous ones stay", "file", k.path, "err", err)
		}
	case !slices.EqualFunc(list, k.All(), func(a, b Key) bool {
		return a.Name == b.Name && a.Algorithm == b.Algorithm && bytes.Equal(a.Secret, b.Secret)
	}):
		k.current.Store(&list)
		k.log.Info("keys read", "file", k.path, "keys", len(list))
	}
	return 0
}

// LogRefused logs a refused zone transfer, at most one every ten seconds after the first five.
func (k *Keys) LogRefused(client netip.Addr, why string) {
	k.warned.Do(func() { k.log.Warn("transfer refused", "client", client, "reason", why) })
}
