// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// writeKey writes a new private key, encrypted as cosign does if there is a password.
func writeKey(t *testing.T, curve elliptic.Curve, password string) (file string, public *ecdsa.PublicKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block := &pem.Block{Type: "PRIVATE KEY"}
	if block.Bytes, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		t.Fatal(err)
	}
	if password != "" {
		block.Type = "ENCRYPTED SIGSTORE PRIVATE KEY"
		if block.Bytes, err = encrypted.Encrypt(block.Bytes, []byte(password)); err != nil {
			t.Fatal(err)
		}
	}
	file = filepath.Join(t.TempDir(), "cosign.key")
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, &key.PublicKey
}

func TestReadKey(t *testing.T) {
	t.Parallel()
	plain, _ := writeKey(t, elliptic.P256(), "")
	secret, public := writeKey(t, elliptic.P256(), "correct")
	other, _ := writeKey(t, elliptic.P384(), "")
	for _, tt := range []struct{ name, file, password, want string }{
		{"PKCS #8", plain, "", ""},
		{"of cosign", secret, "correct", ""},
		{"wrong password", secret, "wrong", "COSIGN_PASSWORD"},
		{"another curve", other, "", "P-256"},
		{"no key", "main.go", "", "PEM"},
		{"no file", "missing", "", "no such file"},
	} {
		s, err := readKey(tt.file, tt.password)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
		if tt.file == secret && err == nil && !s.key.PublicKey.Equal(public) {
			t.Errorf("%s: another key", tt.name)
		}
	}
}

// A sealed is a bundle of Sigstore, as cosign reads it.
type sealed struct {
	MediaType    string
	DSSEEnvelope struct {
		PayloadType string
		Payload     []byte
		Signatures  []struct{ Sig []byte }
	}
	MessageSignature struct {
		MessageDigest struct{ Digest []byte }
		Signature     []byte
	}
}

// checkSignature verifies what cosign does: the envelope of a statement, else the signature of a file.
func checkSignature(t *testing.T, public *ecdsa.PublicKey, bundle, message []byte) []byte {
	t.Helper()
	b := decode[sealed](t, bundle)
	signature := b.MessageSignature.Signature
	if e := b.DSSEEnvelope; len(e.Signatures) == 1 {
		signature = e.Signatures[0].Sig
		message = fmt.Appendf(nil, "DSSEv1 28 application/vnd.in-toto+json %d %s", len(e.Payload), e.Payload)
	}
	digest := sha256.Sum256(message)
	if b.MediaType != string(bundleType) || !ecdsa.VerifyASN1(public, digest[:], signature) {
		t.Errorf("a signature of %q does not verify: %s", message, bundle)
	}
	return b.DSSEEnvelope.Payload
}

// checkRelease looks at the files beside the image.
func checkRelease(t *testing.T, out string, public *ecdsa.PublicKey) {
	t.Helper()
	files := filesOf(t, out)
	sums := files["SHA256SUMS"]
	checkSignature(t, public, files["SHA256SUMS.sigstore.json"], sums)
	delete(files, "SHA256SUMS")
	delete(files, "SHA256SUMS.sigstore.json")
	var want strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	if want.String() != string(sums) {
		t.Errorf("SHA256SUMS:\n%s\nwant:\n%s", sums, &want)
	}
	const image = "ghcr.io/nodecache/node-cache:v1.2.3"
	for _, name := range []string{"install.yaml", "install-transparent.yaml", "uninstall.yaml"} {
		text := string(files[name])
		if !strings.Contains(text, "image: "+image+"\n") || strings.Count(text, "node-cache:v") != strings.Count(text, image+"\n") {
			t.Errorf("%s: want %s and no other image:\n%s", name, image, text)
		}
	}
	if !bytes.Contains(files["try.yaml"], []byte("kind: Pod")) {
		t.Errorf("try.yaml: %s", files["try.yaml"])
	}
	if text := string(files["notes.md"]); !strings.HasPrefix(text, "# node-cache v1.2.3\n") || !strings.Contains(text, image+"@sha256:") || !strings.Contains(text, "ghcr.io/nodecache/charts/node-cache:1.2.3@sha256:") {
		t.Errorf("notes.md: %s", text)
	}
	if page := readTar(t, unzip(t, files["node-cache-man.tar.gz"]))["man1/node-cache-query.1"]; !bytes.Contains(page, []byte(`"Nov 2023"`)) {
		t.Errorf("the manual page of query, with the date of the commit: %s", page)
	}
	checkChart(t, files["node-cache-1.2.3.tgz"])
	for platform, format := range map[string]string{"linux-amd64": "\x7fELF", "linux-arm64": "\x7fELF", "darwin-arm64": "\xcf\xfa\xed\xfe"} {
		plugin := readTar(t, unzip(t, files["kubectl-node_cache-"+platform+".tar.gz"]))
		if !bytes.HasPrefix(plugin["kubectl-node_cache"], []byte(format)) || !bytes.Contains(plugin["kubectl-node_cache"], []byte("v1.2.3")) {
			t.Errorf("the plugin for %s is no program of this version for it", platform)
		}
		for _, licence := range []string{"licenses/LICENSE", "licenses/std/LICENSE", "licenses/k8s.io/client-go/LICENSE", "licenses/golang.org/x/term/LICENSE"} {
			if plugin[licence] == nil {
				t.Errorf("the plugin for %s: no %s", platform, licence)
			}
		}
	}
}

// checkChart compares the packed chart with its folder.
func checkChart(t *testing.T, data []byte) {
	t.Helper()
	got := readTar(t, unzip(t, data))
	for name, data := range filesOf(t, filepath.Join(repository, "daemonset/chart")) {
		text := strings.ReplaceAll(string(data), "0.7.0", "1.2.3")
		if packed := string(got["node-cache/"+name]); packed != text {
			t.Errorf("%s in the chart:\n%s\nwant:\n%s", name, packed, text)
		}
	}
	if !bytes.Contains(got["node-cache/Chart.yaml"], []byte("version: 1.2.3\nappVersion: v1.2.3\n")) {
		t.Errorf("Chart.yaml: %s", got["node-cache/Chart.yaml"])
	}
}

// TestCosign verifies a release by the commands of SECURITY.md, which have to refuse a file that was changed.
func TestCosign(t *testing.T) {
	if os.Getenv("SOAK") == "" {
		t.Skip("builds cosign: set SOAK")
	}
	out := t.TempDir()
	key, public := writeKey(t, elliptic.P256(), "")
	mustRun(t, arguments(repository, out, "-key", key)...)
	registry := listing(t)
	mustRun(t, "push", filepath.Join(out, "node-cache-v1.2.3.oci.tar"), registry+"/nodecache/node-cache:v1.2.3")
	mustRun(t, "push", filepath.Join(out, "node-cache-chart-v1.2.3.oci.tar"), registry+"/nodecache/charts/node-cache:1.2.3")
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "cosign.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(mustRead(t, filepath.Join(repository, "SECURITY.md"))), "\n## Verify a release\n")
	page = strings.NewReplacer("ghcr.io", registry, "0.7.0", "1.2.3", "$ cosign", "$ go run github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5", "\\\n", "").Replace(page)
	if strings.Count(page, " verify-attestation ") != 2 { // of the image and of the chart
		t.Fatalf("SECURITY.md has no commands:\n%s", page)
	}
	for _, changed := range []bool{false, true} {
		for line := range strings.Lines(page) {
			command, is := strings.CutPrefix(line, "$ ")
			if !is {
				continue
			}
			shell := exec.CommandContext(t.Context(), "sh", "-c", command)
			shell.Dir = out
			text, err := shell.CombinedOutput()
			if want := changed && strings.Contains(command, "verify-blob"); (err != nil) != want {
				t.Errorf("a file was changed: %t; %s: %v\n%s", changed, command, err, text)
			}
		}
		sums := filepath.Join(out, "SHA256SUMS")
		if err := os.WriteFile(sums, append(mustRead(t, sums), "0000  more\n"...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// listing starts a registry that lists referrers.
func listing(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// distribution starts Debian's registry, which lists none.
func distribution(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, config := free.Addr().String(), filepath.Join(t.TempDir(), "config.yml")
	_ = free.Close()
	if err := os.WriteFile(config, []byte("version: 0.1\nstorage: {inmemory: {}}\nhttp: {addr: "+addr+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), "docker-registry", "serve", config)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Wait() })
	for range 1000 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return addr
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the registry does not serve")
	return ""
}

// registries are kinds of registries, and what starts one.
func registries() map[string]func(*testing.T) string {
	return map[string]func(*testing.T) string{"listing referrers": listing, "distribution": distribution}
}

// checkPush pushes the archive to registries with and without a list of referrers, and reads it back.
func checkPush(t *testing.T, archive, reference string, public *ecdsa.PublicKey) {
	t.Helper()
	for kind, start := range registries() {
		t.Run("push to a registry, "+kind, func(t *testing.T) {
			t.Parallel()
			to := start(t) + "/team/node-cache:v1.2.3"
			_, digest, _ := strings.Cut(reference, "@")
			if got, want := mustRun(t, "push", archive, to), to+"@"+digest; got != want {
				t.Errorf("printed %s, want %s", got, want)
			}
			ref, err := name.ParseReference(to)
			if err != nil {
				t.Fatal(err)
			}
			index, err := remote.Index(ref)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(index, validate.Fast); err != nil {
				t.Error(err)
			}
			checkStatements(t, ref.Context(), digest, public)
			manifest, err := index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range manifest.Manifests {
				if got := slices.Collect(maps.Values(attachments(t, ref.Context(), d.Digest.String()))); len(got) != 1 || !bytes.Contains(got[0], []byte("CycloneDX")) {
					t.Errorf("attachments of %s: %q, want a bill of materials", d.Platform, got)
				}
			}
		})
	}
}

// checkStatements verifies what is signed of an image: its provenance, and that it is signed.
func checkStatements(t *testing.T, in name.Repository, digest string, public *ecdsa.PublicKey) {
	t.Helper()
	for _, kind := range []string{provenanceType, signatureType} {
		payload := checkSignature(t, public, attachments(t, in, digest)[kind], nil)
		got := decode[struct {
			PredicateType string
			Subject       []struct{ Digest map[string]string }
		}](t, payload)
		if got.PredicateType != kind || "sha256:"+got.Subject[0].Digest["sha256"] != digest {
			t.Errorf("a statement of kind %s about %s is %s", kind, digest, payload)
		}
		if kind == provenanceType && !bytes.Contains(payload, []byte(`{"gitCommit":"0123abcd"}`)) {
			t.Errorf("the provenance has no commit: %s", payload)
		}
	}
}

// attachments are what refers to a digest, by their kind.
func attachments(t *testing.T, in name.Repository, digest string) map[string][]byte {
	t.Helper()
	list, err := remote.Referrers(in.Digest(digest))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := list.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, d := range manifest.Manifests {
		artifact, err := remote.Image(in.Digest(d.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		found[d.Annotations["dev.sigstore.bundle.predicateType"]] = onlyLayer(t, artifact)
	}
	return found
}

func onlyLayer(t *testing.T, artifact v1.Image) []byte {
	t.Helper()
	layers, err := artifact.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v, want one", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestPushRefused gives push what is no name and what are no archives: it writes no file outside of its folder.
func TestPushRefused(t *testing.T) {
	t.Parallel()
	packed := func(name, text string) string {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		_ = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o644})
		_, _ = io.WriteString(w, text)
		_ = w.Close()
		file := filepath.Join(t.TempDir(), "archive.tar")
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	outside := filepath.Join(os.TempDir(), "node-cache-outside")
	for _, tt := range []struct{ name, archive, to, want string }{
		{"no tag", "none", "127.0.0.1:1/node-cache", "name"},
		{"no file", "none", "127.0.0.1:1/node-cache:v1", "no such file"},
		{"no archive", "main.go", "127.0.0.1:1/node-cache:v1", "reading the archive"},
		{"a file outside", packed("../node-cache-outside", "x"), "127.0.0.1:1/node-cache:v1", "escapes"},
		{"an absolute name", packed(outside, "x"), "127.0.0.1:1/node-cache:v1", "escapes"},
		{"no image", packed("index.json", `{"schemaVersion": 2}`), "127.0.0.1:1/node-cache:v1", "neither image nor chart"},
	} {
		if err := run(t.Context(), []string{"push", tt.archive, tt.to}, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
		if _, err := os.Stat(outside); err == nil {
			t.Errorf("%s: a file was written outside of the folder", tt.name)
		}
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const changelog = "# Changelog\n\n## Unreleased\n\nnext\n\n## v1.2.0 - 2026-12-01\n\n- [new](docs/new.md)\n\n## v1.1.0 - 2026-11-01\n\nold\n"
	if err := os.WriteFile(filepath.Join(root, "CHANGELOG.md"), []byte(changelog), 0o644); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"v1.2.0": " - 2026-12-01\n\n```\nthe image\n```\n\n- [new](" + source + "/blob/v1.2.0/docs/new.md)\n\n",
		"v1.1.0": " - 2026-11-01\n\n```\nthe image\n```\n\nold\n\n",
		"v1.3.0": "\n\n```\nthe image\n```\n\nnext\n\n",
	} {
		o := &options{root: root, version: version}
		got, err := o.notes("the image\n")
		if want = "# node-cache " + version + want; err != nil || string(got) != want {
			t.Errorf("%s: %v, %q, want %q", version, err, got, want)
		}
	}
}
