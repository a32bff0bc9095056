// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// part is something that the image is made of.
type part struct {
	path, version string // of the module; "std" is the Go library
	sum           string // as in go.sum
	licence       licence
}

// parts lists what the linker put into the binary, and the certificates beside it, in the order of their paths.
func (b *binary) parts() ([]part, error) {
	modules := append(slices.Clone(b.info.Deps), &b.roots)
	all := make([]part, 0, len(modules)+1)
	all = append(all, part{path: "std", version: strings.TrimPrefix(b.info.GoVersion, "go")})
	for _, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		all = append(all, part{path: module.Path, version: module.Version, sum: module.Sum})
	}
	slices.SortFunc(all, func(a, b part) int { return strings.Compare(a.path, b.path) })
	for i := range all {
		folder := b.folders[all[i].path]
		if all[i].path == "std" {
			folder = b.goroot
		}
		if folder == "" {
			return nil, fmt.Errorf("finding the licence of %s: the go command does not know its folder", all[i].path)
		}
		var err error
		if all[i].licence, err = readLicence(folder); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// bill writes the bill of materials of one architecture's image, as CycloneDX JSON.
func (b *binary) bill(o *options, parts []part, packages []debianPackage) ([]byte, error) {
	sum := sha256.Sum256(b.data)
	main := cdx.Component{
		BOMRef: "node-cache", Type: cdx.ComponentTypeApplication, Name: "node-cache", Version: o.version,
		Description: "node-cache for " + b.platform,
		Hashes:      &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses:    &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		PackageURL:  "pkg:golang/" + b.info.Main.Path + "@" + o.version,
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + serial(sum[:])
	bom.Metadata = &cdx.Metadata{Timestamp: o.created.Format(time.RFC3339), Component: &main}
	components := make([]cdx.Component, 0, len(parts)+len(packages))
	refs := make([]string, 0, cap(components))
	for _, p := range parts {
		components = append(components, p.component())
	}
	for _, p := range packages {
		components = append(components, p.component())
	}
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	if err != nil {
		return nil, fmt.Errorf("writing the bill of materials: %w", err)
	}
	return out.Bytes(), nil
}

// component describes a Go module.
func (p *part) component() cdx.Component {
	url := "pkg:golang/" + p.path + "@" + p.version
	c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: p.path, Version: p.version, PackageURL: url, Scope: cdx.ScopeRequired}
	if p.sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: p.sum}}
	}
	if p.path == rootsModule {
		c.Type = cdx.ComponentTypeData
		c.Description = "certificate authorities, in /" + rootsFile
	}
	if either := choice(p.path); either != "" {
		c.Licenses = &cdx.Licenses{{Expression: either}}
		return c
	}
	var licences cdx.Licenses
	for _, id := range p.licence.ids {
		licences = append(licences, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	if len(licences) > 0 {
		c.Licenses = &licences
	}
	return c
}

// serial makes a UUID out of a hash, so that the same binary has the same bill.
func serial(sum []byte) string {
	u := slices.Clone(sum[:16])
	u[6] = u[6]&0x0f | 0x80 // version 8: of our own making
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// licenceFiles lists the texts that go into the image, by their path in it.
func licenceFiles(own licence, parts []part) map[string][]byte {
	files := map[string][]byte{}
	for _, t := range own.texts {
		files[path.Join("licenses", t.name)] = t.data
	}
	for _, p := range parts {
		for _, t := range p.licence.texts {
			files[path.Join("licenses", p.path, t.name)] = t.data
		}
	}
	return files
}
