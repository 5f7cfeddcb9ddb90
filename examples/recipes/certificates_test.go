package recipes_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/latchkit/latchkit/examples/recipes"
)

// authority is a CA that counts the certificates that it has issued.
type authority struct {
	key    *ecdsa.PrivateKey
	root   *x509.Certificate
	issued atomic.Int32
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a CA"}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
	}
	return &authority{key: key, root: root}
}

// IssuerKey is the authority's name.
func (a *authority) IssuerKey() string { return "test" }

// Issue makes a certificate. It takes as long as a real authority may take.
func (a *authority) Issue(_ context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	<-time.After(50 * time.Millisecond)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(int64(a.issued.Add(1)) + 1), DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.root, request.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// Two pods want the same certificates at the same time. They use the real certmagic and one disk.
func TestACertificateIsIssuedOnce(t *testing.T) {
	t.Parallel()
	ca, disk := newAuthority(t), t.TempDir()
	domains := []string{"shop.example", "api.shop.example"}
	together(newPods(t), 1, func(p pod) {
		storage := recipes.NewCertificateStorage(&certmagic.FileStorage{Path: disk}, p.l)
		var config *certmagic.Config
		cache := certmagic.NewCache(certmagic.CacheOptions{
			GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
		})
		defer cache.Stop()
		config = certmagic.New(cache, certmagic.Config{Storage: storage, Issuers: []certmagic.Issuer{ca}})
		if err := config.ManageSync(t.Context(), domains); err != nil {
			t.Error(err)
		}
		for _, domain := range domains {
			if _, err := config.CacheManagedCertificate(t.Context(), domain); err != nil {
				t.Errorf("%s: %v", domain, err)
			}
		}
	})
	if n := int(ca.issued.Load()); n != len(domains) {
		t.Errorf("%d certificates were issued for %d domains", n, len(domains))
	}
}
