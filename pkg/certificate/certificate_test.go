// SPDX-License-Identifier: Apache-2.0

package certificate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/certificate"
)

// pair writes a certificate of a name and its key.
func pair(t *testing.T, cert, key, name string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NoError(t, err)
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	assert.NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	assert.NoError(t, err)
	replace(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
	replace(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// replace writes a file as one step.
func replace(t *testing.T, path string, text []byte) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path+".new", text, 0o600))
	assert.NoError(t, os.Rename(path+".new", path))
}

// A logger sends each line to a channel.
type logger chan string

// Write implements [io.Writer].
func (l logger) Write(line []byte) (int, error) { l <- string(line); return len(line), nil }

// TestReload replaces the files: by another pair, by one without its key, and by nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	cert, key := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	pair(t, cert, key, "first")
	lines := make(logger, 100)
	c, err := certificate.Load(cert, key, slog.New(slog.NewTextHandler(lines, nil)))
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	await := func(want string) {
		t.Helper()
		for line := range lines { // until the test's own timeout
			if strings.Contains(line, want) {
				return
			}
		}
	}
	name := func() string {
		got, err := c.TLS().GetCertificate(new(tls.ClientHelloInfo))
		assert.NoError(t, err)
		return got.Leaf.Subject.CommonName
	}
	assert.Equal(t, "at the start", "first", name())
	pair(t, cert, key, "second")
	await("certificate read")
	assert.Equal(t, "after a change", "second", name())
	replace(t, key, []byte("no key"))
	await("certificate unreadable, the previous one stays")
	assert.Equal(t, "with a broken file", "second", name())
	assert.NoError(t, os.Remove(cert))
	await("no such file")
	assert.Equal(t, "without a file", "second", name())
	pair(t, cert, key, "third")
	await("certificate read")
	assert.Equal(t, "with both files again", "third", name())
}

func TestLoadErrors(t *testing.T) {
	t.Parallel()
	cert, key := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	other := filepath.Join(t.TempDir(), "other")
	pair(t, cert, key, "first")
	pair(t, other+".crt", other+".key", "other")
	for _, tt := range []struct{ name, cert, key, want string }{
		{"no certificate", "/none", key, "reading /none: open /none: no such file or directory"},
		{"no key", cert, "/none", "reading /none: open /none: no such file or directory"},
		{"another key", cert, other + ".key", "private key does not match public key"},
		{"exchanged", key, cert, "failed to find certificate PEM data"},
	} {
		if _, err := certificate.Load(tt.cert, tt.key, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}

// TestSelfSigned checks the certificate that is made without files, as a client could that trusts it.
func TestSelfSigned(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c, err := certificate.SelfSigned("worker-3", now)
	assert.NoError(t, err)
	got, err := c.TLS().GetCertificate(new(tls.ClientHelloInfo))
	assert.NoError(t, err)
	leaf, err := x509.ParseCertificate(got.Certificate[0])
	assert.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "worker-3", CurrentTime: now.AddDate(9, 0, 0)}); err != nil {
		t.Error(err)
	}
	c.Run(t.Context()) // has nothing to follow
}
