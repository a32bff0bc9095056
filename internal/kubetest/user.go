// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Admin is the user who may do everything.
const Admin = "admin"

// controllersUser is the controller manager's user.
const controllersUser = "controllers"

// tokenFile lists the users for the API server, in the cluster's folder.
const tokenFile = "tokens.csv"

// A user is an account that the API server identifies by a token.
type user struct {
	name, token, groups string
}

// newUsers gives each user a token; names are those without any permission.
func newUsers(names []string) ([]user, error) {
	users := []user{
		{name: Admin, groups: "system:masters"},
		{name: controllersUser, groups: "system:masters"},
	}
	for _, name := range names {
		known := slices.ContainsFunc(users, func(u user) bool { return u.name == name })
		if known || name == "" || strings.ContainsAny(name, "/\",\n") {
			return nil, fmt.Errorf("naming user %q: taken, or no name for a file", name)
		}
		users = append(users, user{name: name})
	}
	for i := range users {
		users[i].token = rand.Text()
	}
	return users, nil
}

// writeTokens writes the API server's list: token, name, number and groups.
func writeTokens(path string, users []user) error {
	var b strings.Builder
	for i, u := range users {
		fmt.Fprintf(&b, "%s,%q,%d,%q\n", u.token, u.name, i, u.groups)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("writing the tokens: %w", err)
	}
	return nil
}

// WriteKubeconfig writes a file with which the owner of a token reaches the API server at a URL.
func WriteKubeconfig(path, ca, server, name, token string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: kubetest
  cluster: {server: %q, certificate-authority: %q}
users:
- name: %q
  user: {token: %q}
contexts:
- name: kubetest
  context: {cluster: kubetest, user: %q}
current-context: kubetest
`, server, ca, name, token, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}

// Keys are the paths of the files that a control plane needs.
type Keys struct {
	CA                     string // the certificate that clients trust
	ServerCert, ServerKey  string // of the API server, signed by that authority
	AccountKey, AccountPub string // sign and verify tokens of service accounts
}

// WriteKeys makes keys in a folder for an API server at addresses of its own and at its Service's.
func WriteKeys(dir string, now time.Time, addresses ...netip.Addr) (Keys, error) {
	keys := Keys{
		CA: filepath.Join(dir, "ca.crt"), ServerCert: filepath.Join(dir, "apiserver.crt"), ServerKey: filepath.Join(dir, "apiserver.key"),
		AccountKey: filepath.Join(dir, "sa.key"), AccountPub: filepath.Join(dir, "sa.pub"),
	}
	ca, caKey, err := newCertificate("kubetest", now, nil, nil)
	if err != nil {
		return Keys{}, err
	}
	server, serverKey, err := newCertificate("kube-apiserver", now, ca, caKey, addresses...)
	if err != nil {
		return Keys{}, err
	}
	_, accountKey, err := newCertificate("service-accounts", now, nil, nil)
	if err != nil {
		return Keys{}, err
	}
	for _, file := range []struct {
		path, kind string
		encode     func() ([]byte, error)
	}{
		{keys.CA, "CERTIFICATE", func() ([]byte, error) { return ca.Raw, nil }},
		{keys.ServerCert, "CERTIFICATE", func() ([]byte, error) { return server.Raw, nil }},
		{keys.ServerKey, "EC PRIVATE KEY", func() ([]byte, error) { return x509.MarshalECPrivateKey(serverKey) }},
		{keys.AccountKey, "EC PRIVATE KEY", func() ([]byte, error) { return x509.MarshalECPrivateKey(accountKey) }},
		{keys.AccountPub, "PUBLIC KEY", func() ([]byte, error) { return x509.MarshalPKIXPublicKey(accountKey.Public()) }},
	} {
		der, err := file.encode()
		if err != nil {
			return Keys{}, fmt.Errorf("encoding a key: %w", err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: file.kind, Bytes: der})
		if err := os.WriteFile(file.path, text, 0o600); err != nil {
			return Keys{}, fmt.Errorf("writing a key: %w", err)
		}
	}
	return keys, nil
}

// newCertificate makes a key and a certificate for it: an authority's when there is no parent, else a server's for
// every name an API server goes by on a loopback address, and for addresses.
func newCertificate(
	name string, now time.Time, parent *x509.Certificate, signer crypto.Signer, addresses ...netip.Addr,
) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("making a serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour), // tests move clocks
		NotAfter:     now.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	if parent == nil {
		parent, signer = template, key
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
	} else {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(serviceIP)}
		for _, a := range addresses {
			template.IPAddresses = append(template.IPAddresses, a.AsSlice())
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("reading a certificate back: %w", err)
	}
	return cert, key, nil
}
