// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Admin is the user who may do everything.
const Admin = "admin"

// controllersUser is the controller manager's user.
const controllersUser = "controllers"

// tokenFile lists the users for the API server, in the cluster's folder.
const tokenFile = "tokens.csv"

// A user is somebody the API server knows by a token.
type user struct {
	name, token, groups string
}

// newUsers gives everybody a token; names are those without any rights.
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

// WriteKubeconfig writes a file with which somebody who has a token reaches the API server at a URL.
func WriteKubeconfig(path, ca, server, name, token string) error {
	return writeKubeconfig(path, ca, server, user{name: name, token: token})
}

// writeKubeconfig writes a file with which a user reaches the API server at a URL.
func writeKubeconfig(path, ca, server string, u user) error {
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
`, server, ca, u.name, u.token, u.name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}
