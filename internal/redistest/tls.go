package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// StartTLS does the work of [Start] for a server that accepts only TLS connections. The server's
// clients check the server's certificate, which is made for this server alone.
func StartTLS(t testing.TB, args ...string) *Server {
	t.Helper()
	config, certificates := certified(t)
	s, err := launch(&Server{tls: config, args: append(certificates, args...)})
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	t.Cleanup(s.cleanUp)
	return s
}

// certified makes a certificate. It returns the configuration of the clients, and the arguments of
// the servers.
func certified(t testing.TB) (config *tls.Config, args []string) {
	t.Helper()
	dir := t.TempDir()
	config, err := certify(dir)
	if err != nil {
		t.Fatal(err)
	}
	return config, []string{
		"--tls-cert-file", filepath.Join(dir, certFile), "--tls-key-file", filepath.Join(dir, keyFile),
		"--tls-ca-cert-file", filepath.Join(dir, certFile), "--tls-auth-clients", "no",
	}
}

const certFile, keyFile = "cert.pem", "key.pem"

// certify makes a certificate for the loopback address, in files in dir. It returns the
// configuration of clients that trust this certificate.
func certify(dir string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redistest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.ParseIP(loopback)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(certText)
	return &tls.Config{RootCAs: trusted, ServerName: loopback, MinVersion: tls.VersionTLS12}, errors.Join(
		os.WriteFile(filepath.Join(dir, certFile), certText, 0o600), os.WriteFile(filepath.Join(dir, keyFile), keyText, 0o600))
}
