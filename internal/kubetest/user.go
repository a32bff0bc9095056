// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
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
func newUsers(names []string) []user {
	users := make([]user, 0, 2+len(names))
	users = append(users, user{name: Admin, groups: "system:masters"}, user{name: controllersUser, groups: "system:masters"})
	for _, name := range names {
		users = append(users, user{name: name})
	}
	for i := range users {
		users[i].token = rand.Text()
	}
	return users
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
	CA         string // the API server's certificate and its authority's, which clients trust
	ServerKey  string
	AccountKey string // signs and verifies tokens of service accounts
}

// WriteKeys makes keys in a folder for an API server at loopback addresses, at its Service's and at addresses of its own. They
// are valid for a year.
func WriteKeys(dir string, addresses ...netip.Addr) (Keys, error) {
	keys := Keys{CA: filepath.Join(dir, "apiserver.crt"), ServerKey: filepath.Join(dir, "apiserver.key"), AccountKey: filepath.Join(dir, "sa.key")}
	ips := make([]net.IP, 0, 3+len(addresses))
	ips = append(ips, net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(serviceIP))
	for _, a := range addresses {
		ips = append(ips, a.AsSlice())
	}
	certificates, serverKey, err1 := cert.GenerateSelfSignedCertKey("localhost", ips, []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc"})
	accountKey, err2 := keyutil.MakeEllipticPrivateKeyPEM()
	err := errors.Join(err1, err2, os.WriteFile(keys.CA, certificates, 0o600),
		os.WriteFile(keys.ServerKey, serverKey, 0o600), os.WriteFile(keys.AccountKey, accountKey, 0o600))
	if err != nil {
		return Keys{}, fmt.Errorf("writing keys: %w", err)
	}
	return keys, nil
}
