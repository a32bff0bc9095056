// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestEtcdPassword reads records as a user, of an etcd that is down at first.
func TestEtcdPassword(t *testing.T) {
	t.Parallel()
	own, etcd := newAuthority(t), newEtcd(t)
	etcd.url = strings.Replace(etcd.url, "http:", "https:", 1)
	etcd.config.TLS = &tls.Config{RootCAs: own.pool}
	args := []string{"--cert-file=" + own.cert, "--key-file=" + own.key}
	etcd.launch(t, args...)
	etcd.put(t, map[string]string{skydns + "a": address("10.0.0.1")})
	_, err := etcd.client.UserAdd(t.Context(), "root", "secret")
	assert.NoError(t, err)
	_, err = etcd.client.UserGrantRole(t.Context(), "root", "root")
	assert.NoError(t, err)
	_, err = etcd.client.AuthEnable(t.Context())
	assert.NoError(t, err)
	etcd.Kill()
	password := proctest.WriteFile(t, filepath.Join(t.TempDir(), "password"), "wrong")
	n := startNode(t, settings{
		more: etcd.section("sky.test", fmt.Sprintf(", user: root, passwordFile: %q, tls: {ca: %q}", password, own.cert)), cluster: []string{"resolver: none"},
	})
	n.awaitProblem(t, "etcd cannot be reached at "+etcd.url+": authenticating root: ")
	n.awaitProblem(t, "connection refused")
	etcd.launch(t, args...)
	n.awaitProblem(t, "authentication failed")
	n.expect(t, expectedAnswer{"a.sky.test.", dns.TypeA, "SERVFAIL ede=14"})
	proctest.WriteFile(t, password, "secret\n")
	n.awaitAnswer(t, "a.sky.test.", "NOERROR 10.0.0.1")
	n.awaitNoProblem(t)
}

// TestEtcdCertificate reads records of an etcd that demands a certificate, once those of both sides are right.
func TestEtcdCertificate(t *testing.T) {
	t.Parallel()
	right, wrong := newAuthority(t), newAuthority(t)
	etcd := newEtcd(t)
	etcd.url = strings.Replace(etcd.url, "http:", "https:", 1)
	pair, err := tls.LoadX509KeyPair(right.cert, right.key)
	assert.NoError(t, err)
	etcd.config.TLS = &tls.Config{RootCAs: right.pool, Certificates: []tls.Certificate{pair}}
	etcd.launch(t, "--client-cert-auth", "--trusted-ca-file="+right.cert, "--cert-file="+right.cert, "--key-file="+right.key)
	etcd.put(t, map[string]string{skydns + "a": address("10.0.0.1")})
	section := func(ca string, own authority) string {
		return etcd.section("sky.test", fmt.Sprintf(", tls: {ca: %q, cert: %q, key: %q}", ca, own.cert, own.key))
	}
	n := startNode(t, settings{more: section(wrong.cert, right), cluster: []string{"resolver: none"}})
	n.awaitProblem(t, "certificate signed by unknown authority")
	for _, p := range n.status(t).Problems {
		if p.Where == "etcd" && !strings.Contains(p.Hint, "etcd.tls") {
			t.Errorf("the hint of %q is %q, want etcd.tls in it", p.What, p.Hint)
		}
	}
	n.reload(t, section(right.cert, wrong))
	n.awaitProblem(t, "remote error: tls: ")
	n.reload(t, section(right.cert, authority{}))
	n.awaitProblem(t, "remote error: tls: certificate required")
	n.expect(t, expectedAnswer{"a.sky.test.", dns.TypeA, "SERVFAIL ede=14"})
	n.reload(t, section(right.cert, right))
	n.awaitAnswer(t, "a.sky.test.", "NOERROR 10.0.0.1")
	n.awaitNoProblem(t)
}

// An authority has a certificate of its own, for servers on loopback and for clients.
type authority struct {
	cert, key string // files
	pool      *x509.CertPool
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	assert.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	assert.NoError(t, err)
	folder := t.TempDir()
	a := authority{cert: filepath.Join(folder, "tls.crt"), key: filepath.Join(folder, "tls.key"), pool: x509.NewCertPool()}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.pool.AppendCertsFromPEM(text)
	proctest.WriteFile(t, a.cert, string(text))
	proctest.WriteFile(t, a.key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return a
}
