// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// certificate is one that signs itself, in PEM form.
func certificate(t *testing.T) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	assert.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	assert.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestLoadCertificates has paths that are no file of certificates: the load reports them, not the first query to an upstream.
func TestLoadCertificates(t *testing.T) {
	t.Parallel()
	good := certificate(t)
	broken := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no DER")}))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("any")}))
	for _, tt := range []struct {
		name string
		file func(path string) error
		want string // what is wrong; empty: nothing
		hint string
	}{
		{name: "one", file: text(good)},
		{name: "several, with text and a key between them", file: text("# ours\n" + good + key + good + "trailing\n")},
		{name: "none", file: text("hello\n"), want: "no certificate in it", hint: "it begins with -----BEGIN CERTIFICATE-----"},
		{name: "an empty file", file: text(""), want: "no certificate in it", hint: "it begins with -----BEGIN CERTIFICATE-----"},
		{name: "a key alone", file: text(key), want: "no certificate in it", hint: "it begins with -----BEGIN CERTIFICATE-----"},
		{name: "a broken one behind a good one", file: text(good + broken), want: "certificate 2: x509: malformed certificate"},
		{
			name: "no file", file: func(string) error { return nil },
			want: "no such file or directory", hint: "name a file that this user can read",
		},
		{name: "a folder", file: func(path string) error { return os.Mkdir(path, 0o700) }, want: "is a directory"},
		{name: "too large", file: text(good + strings.Repeat("#", 1<<20)), want: "larger than 1 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			ca, file := filepath.Join(folder, "ca.pem"), filepath.Join(folder, "config.yaml")
			assert.NoError(t, errors.Join(
				tt.file(ca),
				os.WriteFile(file, []byte("forward: [{zone: ., to: ['tls://192.0.2.1'], tls: {ca: ca.pem}}]"), 0o600),
			))
			got, err := config.Load(file, config.Agent)
			if tt.want == "" {
				if err != nil || got.Forward[0].CA != ca {
					t.Fatalf("Load: certificates %q, error %v, want %q", got.Forward[0].CA, err, ca)
				}
				return
			}
			shown := `"` + ca[:min(len(ca), 64)] + `"`
			if len(ca) > 64 {
				shown += "..."
			}
			want := &config.Error{Path: file, Problems: []config.Problem{
				{Line: 1, Column: 56, Path: "forward[0].tls.ca", What: shown + ": " + tt.want, Hint: tt.hint},
			}}
			problems, ok := errors.AsType[*config.Error](err)
			if !ok {
				t.Fatalf("Load: error %v, want a *config.Error", err)
			}
			assert.Same(t, "Load", want, problems)
		})
	}
}

// text writes a file.
func text(content string) func(string) error {
	return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
}

// TestLoadCertificatesBesideOtherProblems has all problems of a file in one report.
func TestLoadCertificatesBesideOtherProblems(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	const content = "forward:\n- {zone: ., to: ['tls://192.0.2.1'], tls: {ca: 7}}\n- {zone: a, to: ['tls://192.0.2.1'], tls: {ca: /nowhere/ca.pem}}\nlisten: {port: 0}\n"
	assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	_, err := config.Load(file, config.Agent)
	problems, ok := errors.AsType[*config.Error](err)
	if !ok {
		t.Fatalf("Load: error %v, want a *config.Error", err)
	}
	want := []config.Problem{
		{Line: 2, Column: 48, Path: "forward[0].tls.ca", What: "7: not a string", Hint: "put it in quotes"},
		{
			Line: 3, Column: 48, Path: "forward[1].tls.ca",
			What: `"/nowhere/ca.pem": no such file or directory`, Hint: "name a file that this user can read",
		},
		{Line: 4, Column: 16, Path: "listen.port", What: "0: not between 1 and 65535", Hint: "the default is 1053"},
	}
	assert.Same(t, "problems", want, problems.Problems)
}
