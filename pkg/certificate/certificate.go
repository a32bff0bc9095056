// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/panics"
)

const (
	// maxFile bounds a file of certificates or a key, in bytes.
	maxFile = 1 << 20
	// selfSigned is how long a certificate of SelfSigned is valid. Its clients do not verify it.
	selfSigned = 10 * 365 * 24 * time.Hour
)

// A Certificate is the certificate of a server. It may be replaced while the server runs.
type Certificate struct {
	cert, key string // paths; empty: self-signed
	log       *slog.Logger
	current   atomic.Pointer[tls.Certificate]
	lastErr   string // error of the last check of the files; empty: none; only Run uses it
}

// Load reads a chain of certificates and its key, both as PEM. Run keeps them up to date.
func Load(cert, key string, log *slog.Logger) (*Certificate, error) {
	pair, err := ReadPair(cert, key)
	if err != nil {
		return nil, err
	}
	c := &Certificate{cert: cert, key: key, log: log}
	c.current.Store(pair)
	return c, nil
}

// ReadPair reads a chain of certificates and its key.
func ReadPair(cert, key string) (*tls.Certificate, error) {
	var texts [2][]byte
	for i, path := range []string{cert, key} {
		text, err := filewatch.ReadFile(path, maxFile)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		texts[i] = text
	}
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return nil, fmt.Errorf("reading %s and %s: %w", cert, key, err)
	}
	return &pair, nil
}

// SelfSigned makes a certificate with a new key, which is in memory only, for a server of this name.
func SelfSigned(name string, now time.Time) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // its signatures cost a tenth of RSA's
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSigned), // clocks differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	c := new(Certificate)
	c.current.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	return c, nil
}

// TLS returns the configuration of a server with this certificate: TLS 1.2 or later. Connections keep the certificate of their start.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

// Run reads the files again when they change, until ctx ends. While they have an error, such as a certificate and the key of another
// one, the previous certificate stays.
func (c *Certificate) Run(ctx context.Context) {
	if c.cert == "" {
		return
	}
	guard := panics.Guard{Where: "certificate", Log: c.log}
	filewatch.Watch(ctx, filewatch.Config{
		Paths: []string{c.cert, c.key}, Check: func(bool) time.Duration { c.reload(); return 0 }, Log: c.log,
		OnPanic: func(panicked any) { _ = guard.Recovered(ctx, panicked) },
	})
}

func (c *Certificate) reload() {
	pair, err := ReadPair(c.cert, c.key)
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed := text != c.lastErr
	c.lastErr = text
	switch {
	case err != nil:
		if changed {
			c.log.Warn("certificate unreadable, the previous one stays", "err", err)
		}
	case !bytes.Equal(pair.Leaf.Raw, c.current.Load().Leaf.Raw):
		c.current.Store(pair)
		c.log.Info("certificate read", "file", c.cert, "not_after", pair.Leaf.NotAfter)
	}
}
