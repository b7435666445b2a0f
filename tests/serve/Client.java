import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Java's own client as it is by default, which offers HTTP/2 with each request: `java Client.java ADDRESS KEY`. */
class Client {
    public static void main(String[] given) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        String small = "{\"texts\": [\"the cat\"]}";
        String large = "{\"texts\": [\"the cat\"], \"prompt\": null" + " ".repeat(1_000_000) + "}";
        List<CompletableFuture<HttpResponse<String>>> asked = new ArrayList<>();
        for (String body : List.of(small, large, small)) { // over one connection
            say(client.send(post(given, body, false), BodyHandlers.ofString()));
            say(client.send(post(given, body, true), BodyHandlers.ofString()));
        }
        say(client.send(request(given, "/health").build(), BodyHandlers.ofString()));
        for (int number = 0; number < 50; number++) { // over many
            String body = number % 5 == 0 ? large : small;
            asked.add(client.sendAsync(post(given, body, number % 2 == 0), BodyHandlers.ofString()));
        }
        for (CompletableFuture<HttpResponse<String>> one : asked) {
            say(one.get());
        }
    }

    static HttpRequest.Builder request(String[] given, String path) {
        return HttpRequest.newBuilder(URI.create(given[0] + path)).header("Authorization", "Bearer " + given[1]);
    }

    static HttpRequest post(String[] given, String body, boolean chunked) {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        return request(given, "/api/embed").header("Content-Type", "application/json")
            .POST(chunked ? BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(bytes)) : BodyPublishers.ofByteArray(bytes))
            .build();
    }

    static void say(HttpResponse<String> answer) {
        System.out.println(answer.statusCode() + " " + answer.version() + " " + answer.body());
    }
}
