// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// signer signs as `cosign --key` does, in bundles that cosign 2.6 and later verify.
type signer struct {
	key  *ecdsa.PrivateKey
	hint []byte // a hash of the public key
}

// readKey reads a private key: one of `cosign generate-key-pair` with its password, or PKCS #8.
func readKey(file, password string) (*signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("reading the key: %s is no PEM file", file)
	}
	der := block.Bytes
	if strings.HasPrefix(block.Type, "ENCRYPTED ") {
		if der, err = encrypted.Decrypt(der, []byte(password)); err != nil {
			return nil, fmt.Errorf("decrypting the key with COSIGN_PASSWORD: %w", err)
		}
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	key, is := parsed.(*ecdsa.PrivateKey)
	if !is || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("reading the key: %s is not an ECDSA key over P-256", file)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	hint := sha256.Sum256(public)
	return &signer{key: key, hint: hint[:]}, nil
}

// sign signs deterministically (RFC 6979), so that a release can be made twice.
func (s *signer) sign(message []byte) ([]byte, error) {
	digest := sha256.Sum256(message)
	signature, err := s.key.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	return signature, nil
}

// file signs a file.
func (s *signer) file(data []byte) ([]byte, error) {
	signature, err := s.sign(data)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(data)
	return s.bundle("messageSignature", map[string]any{
		"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": digest[:]},
		"signature":     signature,
	})
}

// statement signs a statement about an image, in an envelope (DSSE).
func (s *signer) statement(data []byte) ([]byte, error) {
	signature, err := s.sign(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(statementType), statementType, len(data), data))
	if err != nil {
		return nil, err
	}
	return s.bundle("dsseEnvelope", map[string]any{
		"payloadType": statementType,
		"payload":     data,
		"signatures":  []any{map[string]any{"sig": signature}},
	})
}

// bundle wraps a signature as Sigstore does.
func (s *signer) bundle(kind string, content any) ([]byte, error) {
	data, err := json.Marshal(map[string]any{
		"mediaType":            bundleType,
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": s.hint}},
		kind:                   content,
	})
	if err != nil {
		return nil, fmt.Errorf("writing a signature: %w", err)
	}
	return data, nil
}
