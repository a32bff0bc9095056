// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/elliptic"
	"crypto/x509"
	"debug/elf"
	"debug/gosym"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// maxBinary is what the binary may weigh: an image that every node pulls has to stay small.
const maxBinary = 45 << 20

const repository = "../.."

// arguments are those of a release.
func arguments(root, out string, more ...string) []string {
	return append([]string{"-root", root, "-out", out, "-version", "v1.2.3", "-revision", "0123abcd", "-created", "1700000000", "-release"}, more...)
}

// TestArchive makes a signed release. The image with iptables needs Debian's servers, so it is only made where it is asked for.
func TestArchive(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	key, public := writeKey(t, elliptic.P256(), "")
	iptables := os.Getenv("IMAGE_IPTABLES") != ""
	reference, _, _ := strings.Cut(mustRun(t, arguments(repository, out, "-key", key, fmt.Sprintf("-iptables=%t", iptables))...), "\n")
	t.Run("iptables", func(t *testing.T) {
		if !iptables {
			t.Skip("fetches packages from Debian: set IMAGE_IPTABLES")
		}
		checkIptables(t, out)
	})
	archive := filepath.Join(out, "node-cache-v1.2.3.oci.tar")
	checkRelease(t, out, public)
	checkPush(t, archive, reference, public)
	files := readTar(t, mustRead(t, archive))
	top := decode[v1.IndexManifest](t, files["index.json"])
	name := top.Manifests[0].Annotations["io.containerd.image.name"]
	if want := "ghcr.io/nodecache/node-cache:v1.2.3"; name != want {
		t.Errorf("the image is named %q, want %q", name, want)
	}
	if want := name + "@" + top.Manifests[0].Digest.String(); reference != want {
		t.Errorf("printed %q, want %q", reference, want)
	}
	index := decode[v1.IndexManifest](t, blobOf(t, files, top.Manifests[0].Digest))
	var platforms []string
	for i := range index.Manifests {
		platforms = append(platforms, index.Manifests[i].Platform.Architecture)
		t.Run(platforms[i], func(t *testing.T) {
			t.Parallel()
			checkImage(t, files, &index.Manifests[i])
			checkBill(t, files, &top, &index.Manifests[i], out)
		})
	}
	if want := []string{"amd64", "arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("architectures %v, want %v", platforms, want)
	}
}

// checkImage looks at one architecture's image.
func checkImage(t *testing.T, files map[string][]byte, of *v1.Descriptor) {
	t.Helper()
	manifest := decode[v1.Manifest](t, blobOf(t, files, of.Digest))
	config := decode[v1.ConfigFile](t, blobOf(t, files, manifest.Config.Digest))
	if config.Architecture != of.Platform.Architecture || config.OS != "linux" {
		t.Errorf("the configuration is of %s/%s, want linux/%s", config.OS, config.Architecture, of.Platform.Architecture)
	}
	if want := []string{"/node-cache"}; !slices.Equal(config.Config.Entrypoint, want) {
		t.Errorf("entrypoint %v, want %v", config.Config.Entrypoint, want)
	}
	for _, labels := range []map[string]string{config.Config.Labels, manifest.Annotations} {
		if labels["org.opencontainers.image.version"] != "v1.2.3" || labels["org.opencontainers.image.revision"] != "0123abcd" {
			t.Errorf("labels %v: want version and revision", labels)
		}
	}
	content := contentOf(t, files, of)
	checkBinary(t, content["node-cache"], of.Platform.Architecture)
	checkRoots(t, content[rootsFile])
	for _, name := range []string{"licenses/LICENSE", "licenses/std/LICENSE", "licenses/github.com/miekg/dns/LICENSE"} {
		if len(content[name]) == 0 {
			t.Errorf("the image has no %s", name)
		}
	}
}

// contentOf unpacks the layers of one architecture's image.
func contentOf(t *testing.T, files map[string][]byte, of *v1.Descriptor) map[string][]byte {
	t.Helper()
	manifest := decode[v1.Manifest](t, blobOf(t, files, of.Digest))
	content := map[string][]byte{}
	for _, layer := range manifest.Layers {
		maps.Copy(content, readTar(t, unzip(t, blobOf(t, files, layer.Digest))))
	}
	return content
}

func unzip(t *testing.T, data []byte) []byte {
	t.Helper()
	packed, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if data, err = io.ReadAll(packed); err != nil {
		t.Fatal(err)
	}
	return data
}

// checkBinary asks for a small static program of the architecture.
func checkBinary(t *testing.T, data []byte, arch string) {
	t.Helper()
	program, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("reading the binary: %v", err)
	}
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if program.Machine != machine[arch] {
		t.Errorf("the binary is for %v, want %v", program.Machine, machine[arch])
	}
	if needed, err := program.ImportedLibraries(); len(needed) > 0 || program.Section(".interp") != nil {
		t.Errorf("the binary needs %v (%v), want a static one", needed, err)
	}
	checkEntry(t, program)
	t.Logf("the binary has %.1f MB", float64(len(data))/1e6)
	if len(data) > maxBinary {
		t.Errorf("the binary has %d bytes, want %d at most", len(data), maxBinary)
	}
}

// checkEntry asks for the entry that answers probes without Go's runtime.
func checkEntry(t *testing.T, program *elf.File) {
	t.Helper()
	lines, err := program.Section(".gopclntab").Data()
	if err != nil {
		t.Fatalf("reading the function table: %v", err)
	}
	functions, err := gosym.NewTable(nil, gosym.NewLineTable(lines, program.Section(".text").Addr))
	if err != nil {
		t.Fatalf("reading the function table: %v", err)
	}
	if f := functions.PCToFunc(program.Entry); f == nil || f.Name != "main.entry" {
		t.Errorf("the program begins in %v, want main.entry", f)
	}
}

// checkRoots asks for certificates that can be used.
func checkRoots(t *testing.T, data []byte) {
	t.Helper()
	count := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Errorf("certificate %d: %v", count, err)
		}
		count++
	}
	if count < 80 { // Mozilla trusts some 140
		t.Errorf("%d certificates, want 80 at least", count)
	}
}

// checkBill asks for a bill of materials that is attached to the image and says a licence for everything.
func checkBill(t *testing.T, files map[string][]byte, top *v1.IndexManifest, of *v1.Descriptor, out string) {
	t.Helper()
	var attached []byte
	for _, d := range top.Manifests[1:] {
		manifest := decode[v1.Manifest](t, blobOf(t, files, d.Digest))
		if manifest.Subject.Digest == of.Digest {
			attached = blobOf(t, files, manifest.Layers[0].Digest)
		}
	}
	beside := mustRead(t, filepath.Join(out, "node-cache-v1.2.3-linux-"+of.Platform.Architecture+".cdx.json"))
	if !bytes.Equal(attached, beside) {
		t.Error("the bill of materials attached to the image is not the one beside the archive")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(beside), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatalf("reading the bill of materials: %v", err)
	}
	named := map[string]bool{}
	for _, c := range *bom.Components {
		named[c.Name] = true
		if c.Licenses == nil || len(*c.Licenses) == 0 {
			t.Errorf("%s %s has no licence", c.Name, c.Version)
		}
	}
	for _, name := range []string{"std", "github.com/miekg/dns", "k8s.io/client-go", rootsModule} {
		if !named[name] {
			t.Errorf("the bill of materials lacks %s", name)
		}
	}
}

// TestReproducible builds from two copies of the sources, in folders of different names.
func TestReproducible(t *testing.T) {
	t.Parallel()
	if os.Getenv("SOAK") == "" {
		t.Skip("builds everything twice: set SOAK")
	}
	first, second := t.TempDir(), filepath.Join(t.TempDir(), "a", "longer", "path")
	key, _ := writeKey(t, elliptic.P256(), "")
	copySources(t, repository, first)
	copySources(t, first, second) // not from the repository, where somebody may be at work
	for _, root := range []string{first, second} {
		mustRun(t, arguments(root, filepath.Join(root, "dist"), "-key", key)...)
	}
	want, got := filesOf(t, filepath.Join(first, "dist")), filesOf(t, filepath.Join(second, "dist"))
	if len(want) < 12 || !maps.EqualFunc(want, got, bytes.Equal) {
		t.Errorf("two runs made files that differ:\n%s\n%s", want["SHA256SUMS"], got["SHA256SUMS"])
	}
}

// filesOf reads the files of a folder.
func filesOf(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	read, err := readTree(folder, "")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for name, n := range read {
		files[name] = n.data
	}
	return files
}

// copySources copies what the image is built from.
func copySources(t *testing.T, from, to string) {
	t.Helper()
	for _, part := range []string{"cmd", "pkg", "internal", "hack/image", "daemonset", "examples"} {
		if err := os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(from, part))); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"go.mod", "go.sum", "LICENSE", "CHANGELOG.md"} {
		if err := os.WriteFile(filepath.Join(to, part), mustRead(t, filepath.Join(from, part)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnknownArgument(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), []string{"-version", "v1.2.3", "surplus"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "surplus") {
		t.Errorf("error %v, want one that names the argument", err)
	}
}

func TestNoTag(t *testing.T) {
	t.Parallel()
	for version, more := range map[string]string{
		"": "", "v1/2": "", "v1 dirty": "", "-v1": "", strings.Repeat("1", 129): "", "23933a1": "-release", "1.2.3": "-release", "v1.2": "-release",
	} {
		if _, err := parse(append([]string{"-version", version}, strings.Fields(more)...)); err == nil || !strings.Contains(err.Error(), "-version") {
			t.Errorf("-version %q: error %v, want one that names the flag", version, err)
		}
	}
}

func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readTar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := eachEntry(bytes.NewReader(data), func(h *tar.Header, content io.Reader) (err error) {
		files[h.Name], err = io.ReadAll(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func blobOf(t *testing.T, files map[string][]byte, digest v1.Hash) []byte {
	t.Helper()
	data, ok := files["blobs/"+digest.Algorithm+"/"+digest.Hex]
	if !ok {
		t.Fatalf("the archive lacks %s", digest)
	}
	return data
}

func decode[T any](t *testing.T, data []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
