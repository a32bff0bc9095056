// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"testing"
	"time"
)

// An Authority signs server certificates. They and its own certificate are valid from half a year before its
// creation; its own ends half a year after it.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority that no client trusts yet.
func NewAuthority(tb testing.TB, now time.Time) *Authority {
	tb.Helper()
	key := newKey(tb)
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "test authority"},
		NotBefore: now.AddDate(0, -6, 0), NotAfter: now.AddDate(0, 6, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatalf("making an authority: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatalf("reading an authority: %v", err)
	}
	return &Authority{cert: cert, key: key}
}

// Trust writes the authority's certificate to the file, and replaces its content.
func (a *Authority) Trust(tb testing.TB, path string) {
	tb.Helper()
	if err := os.WriteFile(path, a.PEM(), 0o600); err != nil {
		tb.Fatalf("writing an authority: %v", err)
	}
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Issue makes a certificate for hosts, which may be addresses, that expires at ends.
func (a *Authority) Issue(tb testing.TB, ends time.Time, hosts ...string) tls.Certificate {
	tb.Helper()
	key := newKey(tb)
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "test server"},
		NotBefore: a.cert.NotBefore, NotAfter: ends,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		tb.Fatalf("making a certificate: %v", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("making a key: %v", err)
	}
	return key
}
