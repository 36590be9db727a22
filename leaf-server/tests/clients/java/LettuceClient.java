import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ValueOutput;
import java.util.ArrayList;
import java.util.List;

public class LettuceClient {
    public static void main(String[] arguments) throws Exception {
        int increments = Integer.parseInt(arguments[1]);
        int flakes = Integer.parseInt(arguments[2]);
        StringBuilder out = new StringBuilder();
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + arguments[0]);
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            for (int at = 0; at < increments; at += 100) {
                List<RedisFuture<Long>> ids = new ArrayList<>();
                for (int number = 0; number < 100; number++) {
                    ids.add(connection.async().incr("leaf-segment-test"));
                }
                for (RedisFuture<Long> id : ids) {
                    out.append(id.get()).append('\n');
                }
            }
            for (int at = 0; at < flakes; at += 100) {
                List<RedisFuture<String>> ids = new ArrayList<>();
                for (int number = 0; number < 100; number++) {
                    ids.add(connection.async().dispatch(() -> "SNOWFLAKE".getBytes(), new ValueOutput<>(StringCodec.UTF8)));
                }
                for (RedisFuture<String> id : ids) {
                    out.append(id.get()).append('\n');
                }
            }
        }
        client.shutdown();
        System.out.print(out);
    }
}
